"""`bamboo --help`: quick, light, complete."""

import resource
import subprocess
import sys

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
    """Of the processor, the best of several that are taken in turns, so that a busy machine slows down both alike; one
    that is so busy that seven did not show it has more turns."""

    def used_s() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def seconds(code: str) -> float:
        before = used_s()
        run_python(code)
        return used_s() - before

    show_help = "import sys; sys.argv = ['bamboo', '--help']; from bamboo_cli.main import main; main()"
    helps, typers = [], []
    for turn in range(40):
        helps.append(seconds(show_help))
        typers.append(seconds("import typer"))
        if turn >= 6 and min(helps) < 2 * min(typers):
            break

    assert min(helps) < 2 * min(typers)
