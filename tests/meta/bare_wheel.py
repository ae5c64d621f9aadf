"""Build the wheel, install it without extras into a new environment, and check a scripted configuration with it."""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
plugins: [scripted]
models:
  - {name: scripted, engine: scripted, options: {reply: "Hello."}}
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work), str(ROOT))
        venv.create(work / "venv", with_pip=True)
        python = work / "venv" / "bin" / "python"
        lock = ["--constraint", str(ROOT / "requirements" / "lock.txt")]
        run(str(python), "-m", "pip", "install", "--quiet", *lock, str(next(work.glob("*.whl"))))
        (work / "appliance.yaml").write_text(CONFIG)
        run(str(python.with_name("appliance")), "check", cwd=work)


def run(*command: str, cwd: Path | None = None) -> None:
    print("+", " ".join(command[:6]), flush=True)
    subprocess.run(command, cwd=cwd, check=True)


if __name__ == "__main__":
    main()
