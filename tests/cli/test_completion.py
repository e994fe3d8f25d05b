"""What a shell proposes when Tab is pressed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import environment, trellis_without_jax
from trellis.cli.completion import proposals
from trellis.cli.main import main


@pytest.mark.parametrize(
    ("line", "proposed"),
    [
        ("trellis tr", ["train"]),
        ("trellis --v", ["--version"]),
        ("trellis data ", ["vocabulary", "pretraining", "show", "finetuning"]),
        ("trellis help conf", ["config"]),
        ("trellis help config ", ["show", "diff"]),
        ("trellis completion f", ["fish"]),
        ("trellis cache p", ["prune"]),
        ("trellis cache prune --o", ["--older_than="]),
        ("trellis help cache ", ["prune"]),
        ("trellis config show --a", ["--all"]),
        ("trellis train --model", ["--model_dir="]),
        ("trellis train --tpu", []),
        ("trellis train --mode=train_and", ["--mode=train_and_eval", "--mode=train_and_post_eval"]),
        ("trellis plan --experiment=bert/squ", ["--experiment=bert/squad"]),
        ("trellis plan --config_file=albert_b", ["--config_file=albert_base.yaml"]),
        ("trellis plan --config_file=here/", []),
        ("trellis train --experiment=digits/classifier --set=task.h", ["--set=task.hidden_size="]),
        (
            "trellis train --experiment=digits/classifier --params_override=a=1,runtime.se",
            ["--params_override=a=1,runtime.seed="],
        ),
        ("trellis train --experiment=none --set=task.h", []),
        ("trellis predict --text='half a sen", []),
        ("trellis nothing --", []),
    ],
)
def test_words_flags_names_and_fields_are_proposed(line: str, proposed: list[str]) -> None:
    assert proposals(line) == proposed


@pytest.mark.parametrize(
    ("shell", "printed"),
    [("bash", "continuous_eval \n"), ("zsh", "continuous_eval \n"), ("fish", "--mode=continuous_eval\n")],
)
def test_each_shell_gets_what_it_takes_for_a_word(shell: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell, "--line=trellis train --mode=continuous_e"]) == 0
    assert capsys.readouterr().out == printed


def test_proposals_need_no_jax() -> None:
    done = trellis_without_jax("completion", "bash", "--line=trellis train --experiment=bert/local --set=runtime.se")
    assert (done.returncode, done.stdout) == (0, "runtime.seed=\n"), done.stderr


def test_another_shell_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bsh"]) == 2
    assert capsys.readouterr().err == "'bsh' cannot be completed. Did you mean bash? There are: bash, zsh, fish.\n"


def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("There is no bash here.")
    command = tmp_path / "trellis"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m trellis "$@"\n')
    command.chmod(0o755)
    program = (
        'eval "$(trellis completion bash)"; COMP_LINE="trellis train --mode=train_and"; COMP_POINT=${#COMP_LINE};'
        '_trellis_completion; printf "%s|" "${COMPREPLY[@]}"'
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [bash, "-c", program], env=environment() | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.stdout == "train_and_eval |train_and_post_eval |", done.stderr
