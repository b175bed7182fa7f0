"""Ready recipes: one file each, with a function ``recipe`` whose arguments are the job's ``recipe_options``."""
