"""`bamboo --help`: quick, light, complete."""

import subprocess
import sys
import time

HEAVY = (
    *("torch", "boto3", "google", "sqlalchemy", "pydantic", "rich", "websockets", "yaml", "psutil", "asyncio"),
    *("cronsim", "crontab"),
)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_help_imports_nothing_heavy() -> None:
    done = run_python(
        "import sys\n"
        "from bamboo_cli.main import main\n"
        "sys.argv = ['bamboo', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('heavy:', [name for name in {HEAVY} if name in sys.modules])\n"
    )

    assert done.returncode == 0, done.stderr
    assert "Train large PyTorch models on spot instances" in done.stdout
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_help_takes_less_than_twice_what_importing_typer_takes() -> None:
    """The best of several, taken in turns, so that a busy machine slows down both alike."""

    def seconds(code: str) -> float:
        started = time.perf_counter()
        run_python(code)
        return time.perf_counter() - started

    show_help = "import sys; sys.argv = ['bamboo', '--help']; from bamboo_cli.main import main; main()"
    pairs = [(seconds(show_help), seconds("import typer")) for _ in range(7)]

    assert min(p[0] for p in pairs) < 2 * min(p[1] for p in pairs)
