import os
from pathlib import Path

os.environ["MOTO_AMIS_PATH"] = str(Path(__file__).with_name("images.json"))
"""moto reads its images when it is imported, which any module of this package may be the first to do."""
