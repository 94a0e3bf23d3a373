"""The programs that are compared: how each is built and started, and what of it the driver must know."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FAMILY = ("lock", "read", "write", "fair", "permits", "counter", "latch")
MAJORITY = ("lock", "three")

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = ROOT / "target" / "peers"


@dataclass
class Program:
    name: str
    label: str
    needs: list  # of TOOLS
    build: list  # commands, with the folder where each runs
    command: list
    renewed: float  # after how many seconds all that is held has been renewed once; 0: it does not renew
    jit: float = 0  # seconds that a virtual machine gets to compile
    warm_up: float = 0.5  # connections are made in it, too
    kinds: tuple = ("lock",)
    cluster: bool = False  # of three servers, in the rows for three


TOOLS = {
    "cargo": "Rust, from https://rustup.rs",
    "cc": "a C compiler (Debian: apt-get install build-essential)",
    "go": "Go 1.26 or newer, from https://go.dev",
    "java": "a JDK of version 17 or newer (Debian: apt-get install default-jdk)",
    "javac": "a JDK of version 17 or newer (Debian: apt-get install default-jdk)",
    "mvn": "Maven (Debian: apt-get install maven)",
    "openssl": "the headers of OpenSSL and pkg-config (Debian: apt-get install libssl-dev pkg-config)",
    "venv": "Python's venv (Debian: apt-get install python3-venv)",
}


def has(tool):
    if tool == "openssl":
        return shutil.which("pkg-config") and subprocess.call(["pkg-config", "--exists", "openssl"]) == 0
    if tool == "venv":
        return subprocess.call(["python3", "-c", "import ensurepip, venv"], stderr=subprocess.DEVNULL) == 0
    return shutil.which(tool)


def rust(name, label, renewed, feature=None, needs=(), **more):
    """Built one by one: together they would get each other's features of shared dependencies."""
    feature = feature or name
    build = ["cargo", "build", "--quiet", "--locked", "--release", "--features", feature, "--bin", feature]
    program = TARGET / "rust" / "release" / feature
    return Program(name, label, ["cargo", "cc", *needs], [(build, HERE / "rust")], [program], renewed, **more)


def golang(name, renewed, **more):
    build = ["go", "build", "-mod=readonly", "-o", TARGET / "go" / name, f"./{name}"]
    return Program(name, f"{name} (Go)", ["go"], [(build, HERE / "go")], [TARGET / "go" / name], renewed, kinds=MAJORITY, **more)


JAVA = Program(
    "redisson",
    "Redisson (Java)",
    ["java", "javac", "mvn"],
    [(["mvn", "-q", "-B", "-Dstyle.color=never", "compile", "dependency:copy-dependencies"], HERE / "java")],
    ["java", "-cp", f"{TARGET / 'java' / 'classes'}:{TARGET / 'java' / 'lib'}/*", "peers.Load"],
    renewed=10,
    jit=6,
    kinds=FAMILY,
)

PYTHON = Program(
    "redis-py",
    "redis-py (Python)",
    ["venv"],
    [
        (["python3", "-m", "venv", TARGET / "python"], HERE),
        ([TARGET / "python" / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "-r",
          HERE / "python" / "requirements.txt"], HERE),
    ],
    [TARGET / "python" / "bin" / "python", HERE / "python" / "peer.py"],
    renewed=0,
    warm_up=1,
)

PROGRAMS = [
    rust("leasehold", "leasehold", renewed=9, kinds=(*FAMILY, "three")),
    JAVA,
    golang("redsync", renewed=0),
    golang("rueidislock", renewed=2.5, cluster=True),
    PYTHON,
    rust("rslock", "rslock (Rust)", renewed=9.5, kinds=MAJORITY),
    rust("redisson-crate", "redisson (Rust)", renewed=0, feature="redisson", needs=["openssl"]),
    rust("distkit", "distkit (Rust)", renewed=10, kinds=("lock", "read", "write")),
]


def check(programs):
    """Ends here if something is missing."""
    missing = {tool for program in programs for tool in program.needs if not has(tool)}
    if missing:
        raise SystemExit("\n".join(f"{tool} is missing: please install {TOOLS[tool]}" for tool in sorted(missing)))


def build(programs, say):
    """Packages come through the ordinary clients, at the versions that the manifests here pin."""
    TARGET.mkdir(parents=True, exist_ok=True)
    for program in programs:
        say(f"building {program.label}")
        for command, folder in program.build:
            env = os.environ | {"CARGO_TARGET_DIR": str(TARGET / "rust")}
            if subprocess.call(command, cwd=folder, env=env, stdout=sys.stderr) != 0:
                raise SystemExit(f"{program.label} could not be built")


def version(program):
    return subprocess.run([*program.command, "version"], capture_output=True, text=True, check=True).stdout.strip()
