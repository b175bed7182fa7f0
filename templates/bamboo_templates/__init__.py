"""Starter jobs and recipes that ``bamboo init`` copies."""
