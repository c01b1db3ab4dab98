"""Going back on file systems that the kernel of this machine lacks: ``tox -e file-systems``.

A virtual machine boots a kernel of Debian's by emulation, so it needs no right of its host. Its
programs are those of this machine, whose directories it sees read-only; its disks are files in its
memory. Packages that are not installed are downloaded by apt and unpacked below the directory that
is named, and nothing is installed. In it, ``going_back`` tries each file system and prints what
came of it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGES = (
    *("qemu-system-x86", "busybox-static", "nfs-kernel-server"),
    *("dosfstools", "e2fsprogs", "exfatprogs", "f2fs-tools"),
)
KERNEL = "linux-image-amd64"
MODULES = (
    *("virtio_pci", "9pnet_virtio", "9p", "loop", "crc32c_generic", "crc32_generic"),
    *("nls_cp437", "nls_ascii", "nls_utf8", "exfat", "vfat", "f2fs", "ext4"),
    *("nfs", "nfsv4", "nfsd"),
)
ELSEWHERE = "/mnt"
"""Where the machine has its own files; what lies below on the host is hidden there."""
DONE = "ALL TRIED"
DISKS = {
    "ext4": ("mkfs.ext4 -q {}", "ext4"),
    "ext4-casefold": ("mkfs.ext4 -q -O casefold -E encoding=utf8 {}", "ext4"),
    "exfat": ("mkfs.exfat {}", "exfat"),
    "vfat": ("mkfs.vfat {}", "vfat -o utf8"),
    "f2fs": ("mkfs.f2fs -q {}", "f2fs"),
}
"""How each is made in a file, and mounted."""


def unpacked(cache: Path) -> Path:
    """Returns where the packages are unpacked; downloads what is not there yet."""
    tree = cache / "tree"
    if (tree / "done").exists():
        return tree
    downloads = cache / "packages"
    downloads.mkdir(parents=True, exist_ok=True)
    wanted = [*PACKAGES, KERNEL]
    asked = ["apt-get", "install", "-s", "--no-install-recommends", *wanted]
    lines = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.splitlines()
    names = [line.split()[1] for line in lines if line.startswith("Inst ")]
    subprocess.run(["apt-get", "-q", "download", *names], cwd=downloads, check=True)
    for package in sorted(downloads.glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, tree], check=True)
    (tree / "done").touch()
    return tree


def within(tree: Path, path: str) -> Path:
    """Returns where something of a package is: unpacked, or of one that is installed."""
    return tree / path if (tree / path).exists() else Path("/") / path


def kernel_in(tree: Path) -> Path:
    """Returns the newest kernel that was unpacked, or else that is installed."""
    kernels = list((tree / "boot").glob("vmlinuz-*")) or list(Path("/boot").glob("vmlinuz-*"))
    return max(kernels, key=lambda kernel: [int(part) for part in re.findall(r"\d+", kernel.name)])


def modules(tree: Path) -> Iterator[Path]:
    """Yields the files of the kernel's modules that are needed, each after what it needs."""
    top = within(tree, f"lib/modules/{kernel_in(tree).name.removeprefix('vmlinuz-')}")
    if not (top / "modules.dep").exists():
        version = top.name
        subprocess.run([within(tree, "bin/busybox"), "depmod", "-b", tree, version], check=True)
    needs: dict[str, list[str]] = {}
    for line in (top / "modules.dep").read_text().splitlines():
        name, _, others = line.partition(":")
        needs[name] = others.split()
    paths = {Path(name).name.removesuffix(".ko").replace("-", "_"): name for name in needs}
    given: list[str] = []
    for module in MODULES:
        if module in paths:
            name = paths[module]
            given += [item for item in (*reversed(needs[name]), name) if item not in given]
    for name in given:
        yield top / name


def initial_files(tree: Path, script: str, place: Path) -> Path:
    """Makes the archive that the kernel starts from; returns its path."""
    files = place / "files"
    for name in ("bin", "lib", "proc", "sys", "dev", "host"):
        (files / name).mkdir(parents=True)
    shutil.copy(within(tree, "bin/busybox"), files / "bin/busybox")
    order = []
    for module in modules(tree):
        shutil.copy(module, files / "lib" / module.name)
        order.append(module.name)
    (files / "modules").write_text("\n".join(order) + "\n")
    (files / "init").write_text(script)
    (files / "init").chmod(0o755)
    archive = place / "initrd.gz"
    names = "\n".join(str(path.relative_to(files)) for path in sorted(files.rglob("*")))
    packed = subprocess.run(
        [within(tree, "bin/busybox"), "cpio", "-o", "-H", "newc"],
        cwd=files,
        input=names.encode(),
        capture_output=True,
        check=True,
    )
    with gzip.open(archive, "wb", compresslevel=1) as file:
        file.write(packed.stdout)
    return archive


def guest_script(tree: Path, names: list[str]) -> str:
    """Returns what the machine does from its start to its end."""
    paths = [item for item in sys.path if item and Path(item).is_dir()]
    programs = ":".join([str(tree / "sbin"), str(tree / "usr/sbin"), os.environ["PATH"]])
    lines = [
        "#!/bin/busybox sh",
        "/bin/busybox --install -s /bin",
        "mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev",
        "for name in $(cat /modules); do insmod /lib/$name || echo no module $name; done",
        "mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=512000,cache=loose host /host",
        "for name in proc sys dev; do mount --bind /$name /host/$name; done",
        f"mount -t tmpfs -o size=900m tmpfs /host{ELSEWHERE}",
        "mount -t tmpfs tmpfs /host/run",
        "ip link set lo up",
        f"cat > /host{ELSEWHERE}/try.sh <<'END'",
        f"export PATH={programs}",
        f"export LD_LIBRARY_PATH={tree}/usr/lib/x86_64-linux-gnu:{tree}/lib/x86_64-linux-gnu",
        f"export PYTHONPATH={':'.join(paths)} HOME={ELSEWHERE} TMPDIR={ELSEWHERE}",
        "export PYTHONDONTWRITEBYTECODE=1 LC_ALL=C.UTF-8",
        f"cd {ELSEWHERE}",
        *(line for name in names for line in _mounting(name)),
        f"for name in {' '.join(names)}; do",
        'mountpoint -q "at/$name" && tried="$tried at/$name" || echo "$name is not mounted"',
        "done",
        f"{sys.executable} -m file_systems.going_back $tried",
        "END",
        f"chroot /host /bin/sh {ELSEWHERE}/try.sh",
        f"echo {DONE}",
        "sync; poweroff -f",
    ]
    return "\n".join(lines) + "\n"


def _mounting(name: str) -> Iterator[str]:
    yield f"mkdir -p at/{name}"
    if name == "9p":
        yield "mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 scratch at/9p"
    elif name == "nfs":
        yield "mkdir -p served; mount -t tmpfs tmpfs served; mount -t tmpfs tmpfs /var/lib"
        yield "mount -t nfsd nfsd /proc/fs/nfsd; mkdir -p /run/nfs /var/lib/nfs/v4recovery"
        yield "for name in grace lease; do echo 10 > /proc/fs/nfsd/nfsv4${name}time; done"
        yield "touch /var/lib/nfs/etab /var/lib/nfs/rmtab; rpc.mountd -N 2 -N 3"
        yield f"exportfs -o rw,fsid=0,no_root_squash,insecure '*:{ELSEWHERE}/served'"
        yield "rpc.nfsd -N 3 1"
        yield "mount -i -t nfs4 -o addr=127.0.0.1,clientaddr=127.0.0.1 127.0.0.1:/ at/nfs"
    else:
        make, kind = DISKS[name]
        yield f"truncate -s 64M {name}.image"
        yield f"{make.format(f'{name}.image')} > /dev/null"
        yield f"mount -o loop -t {kind} {name}.image at/{name}"
    if name == "ext4-casefold":
        yield f"mkdir at/{name}/folded; chattr +F at/{name}/folded"
        yield f"mount --bind at/{name}/folded at/{name}"


def boot(tree: Path, place: Path, names: list[str]) -> list[dict[str, Any]]:
    """Starts the machine and prints what it says; returns the results."""
    scratch = place / "scratch"
    scratch.mkdir()
    archive = initial_files(tree, guest_script(tree, names), place)
    shared = ["security_model=none", "multidevs=remap"]
    words = [
        within(tree, "usr/bin/qemu-system-x86_64"),
        *("-L", within(tree, "usr/share/qemu"), "-L", within(tree, "usr/share/seabios")),
        *("-accel", "tcg", "-cpu", "max", "-m", "1536", "-smp", "1", "-nographic", "-no-reboot"),
        *("-nic", "none"),
        *("-kernel", kernel_in(tree), "-initrd", archive),
        *("-append", "console=ttyS0 quiet panic=-1"),
        *("-virtfs", ",".join(["local,path=/,mount_tag=host,readonly=on", *shared])),
        *("-virtfs", ",".join([f"local,path={scratch},mount_tag=scratch", *shared])),
    ]
    library = f"{tree}/usr/lib/x86_64-linux-gnu:{tree}/lib/x86_64-linux-gnu"
    results = []
    with subprocess.Popen(
        [str(word) for word in words],
        env={**os.environ, "LD_LIBRARY_PATH": library},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as machine:
        assert machine.stdout is not None
        for line in machine.stdout:
            _, is_result, document = line.partition("RESULT ")  # behind what the console sends
            if is_result:
                results.append(json.loads(document))
            else:
                sys.stdout.write(line)
                sys.stdout.flush()
    return results


def main() -> int:
    """Tries file systems; returns 1 if one failed or was not tried."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path(".tox/file-systems/machine"))
    parser.add_argument("names", nargs="*", default=[*DISKS, "9p", "nfs"])
    options = parser.parse_args()
    tree = unpacked(options.cache.absolute())
    place = options.cache.absolute() / f"run-{os.getpid()}"
    place.mkdir()
    begun_s = time.monotonic()
    try:
        results = {item["name"]: item for item in boot(tree, place, options.names)}
    finally:
        shutil.rmtree(place, ignore_errors=True)
    for name in options.names:
        print(json.dumps(results.get(name, {"name": name, "problem": "was not tried"})))
    print(f"{len(results)} file systems in {time.monotonic() - begun_s:.0f} s")
    tried = [results.get(name, {}) for name in options.names]
    return 0 if all("kills" in item for item in tried) else 1


if __name__ == "__main__":
    sys.exit(main())
