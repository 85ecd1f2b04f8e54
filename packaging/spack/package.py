"""Spack recipe. Copy it to packages/regatta/package.py of a Spack repository, and install the archive of a
commit, which has no fixed checksum, from the folder that it is in:

    git archive --prefix=regatta-0.1.0/ --output=regatta-0.1.0.tar.gz HEAD
    spack install --no-checksum regatta
"""

import os
import re

from spack_repo.builtin.build_systems import cargo
from spack_repo.builtin.build_systems.cargo import CargoPackage

from spack.package import *


class Regatta(CargoPackage):
    """Takes an AI training job from one device to a whole supercomputer: discovers the machine, places and
    launches ranks, measures the network, and trains GPT and Llama models."""

    url = f"file://{os.getcwd()}/regatta-0.1.0.tar.gz"
    manual_download = True

    license("MIT OR Apache-2.0")

    version("0.1.0")

    depends_on("c", type="build")
    depends_on("rust@1.95:", type="build")

    sanity_check_is_file = ["bin/regatta"]


class CargoBuilder(cargo.CargoBuilder):
    @property
    def build_directory(self):
        # The root of the workspace is no package.
        return join_path(self.pkg.stage.source_path, "crates", "regatta")

    @property
    def build_args(self):
        return ["--locked"]

    @property
    def check_args(self):
        # The other tests need a test cluster.
        return ["--locked", "--bins"]

    @run_after("install")
    def install_completions(self):
        regatta = Executable(self.prefix.bin.regatta)
        scripts = {
            "bash": join_path("bash-completion", "completions", "regatta"),
            "zsh": join_path("zsh", "site-functions", "_regatta"),
            "fish": join_path("fish", "vendor_completions.d", "regatta.fish"),
        }
        for shell, path in scripts.items():
            self.write(path, regatta("completions", shell, output=str))

    @run_after("install")
    def install_manual_pages(self):
        regatta = Executable(self.prefix.bin.regatta)
        self.write(join_path("man", "man1", "regatta.1"), regatta("man", output=str))
        _, _, commands = regatta("--help", output=str).partition("\nCommands:\n")
        commands, _, _ = commands.partition("\n\n")
        for command in re.findall(r"^  ([a-z-]+) ", commands, re.MULTILINE):
            if command != "help":
                page = regatta("man", command, output=str)
                self.write(join_path("man", "man1", f"regatta-{command}.1"), page)

    def write(self, path, text):
        """Writes a file below share."""
        path = join_path(self.prefix.share, path)
        mkdirp(os.path.dirname(path))
        with open(path, "w") as file:
            file.write(text)
