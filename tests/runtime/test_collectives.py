"""What a program sends, read from its text, and from that of a program that was compiled."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from trellis.runtime import Placement
from trellis.runtime.collectives import count_sent_bytes

PROGRAM = """HloModule jit_step, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%x, %y)
}

%body (carry: (s32[], f32[8])) -> (s32[], f32[8]) {
  %inner = f32[8]{0} all-reduce(%value), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add
}

ENTRY %main (a: f32[4,2], b: bf16[16]) -> f32[4,2] {
LINES
}
"""


def sent(*lines: str) -> dict[str, int]:
    return count_sent_bytes(PROGRAM.replace("LINES", "\n".join(lines)), n_devices=8)


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", 4),
        ("[4,2]<=[8]", 2),
        ("[2,4]<=[4,2]T(1,0)", 4),
        ("mesh['axis_0'=4,'axis_1'=1,'axis_2'=2] {'axis_2'}", 2),
        ("mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_0','axis_1'}", 8),
        ("mesh['axis_0'=8] {'axis_0':(1)4}", 4),
        ("{}", 8),
    ],
)
def test_who_takes_part_is_read_in_every_form(groups: str, size: int) -> None:
    counted = sent(f"  %g = f32[32]{{0}} all-gather(%a), replica_groups={groups}, dimensions={{0}}, use_global=true")
    assert counted == {"all-gather": 128 * (size - 1) // size}


def test_each_kind_is_counted_as_a_ring_sends_it() -> None:
    groups = "replica_groups={{0,1,2,3}}"
    assert sent(f"  %r = (f32[32]{{0}}, bf16[32]{{0}}) all-reduce(%a, %b), {groups}") == {
        "all-reduce": 2 * 192 * 3 // 4
    }
    assert sent(f"  %s = f32[8]{{0}} reduce-scatter(%a), {groups}") == {"reduce-scatter": 32 * 3}
    assert sent(f"  %t = (s32[8]{{0}}, s32[8]{{0}}) all-to-all(%a, %b), {groups}") == {"all-to-all": 64 * 3 // 4}
    pairs = "source_target_pairs={{0,1},{1,0}}"
    assert sent(f"  %p = pred[8]{{0}} collective-permute(%a), {pairs}") == {"collective-permute": 8}
    assert sent("  %m = f32[4,2]{1,0} add(%a, %a)") == {}


def test_a_loop_counts_as_often_as_it_runs() -> None:
    loop = "  %w = (s32[], f32[8]) while(%start), condition=%less, body=%body"
    assert sent(loop) == {"all-reduce": 32}
    assert sent(loop + ', backend_config={"known_trip_count":{"n":"5"}}') == {"all-reduce": 5 * 32}


def test_a_compiled_sum_over_devices_is_found() -> None:
    placement = Placement(jax.devices()[:4])
    split = NamedSharding(placement.mesh, PartitionSpec("data"))
    rows = jax.ShapeDtypeStruct((8, 256), jnp.float32, sharding=split)
    program = jax.jit(lambda x: x.sum(0), out_shardings=placement.replicated).lower(rows).compile()
    assert count_sent_bytes(program.as_text() or "", n_devices=4) == {"all-reduce": 2 * 1024 * 3 // 4}
