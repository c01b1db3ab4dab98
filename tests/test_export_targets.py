"""Where a restore to another directory may not write."""

from __future__ import annotations

import pytest

from treesnap.errors import Refused
from world import World


@pytest.mark.parametrize("inside", ["", "packs", "new", "packs/new/er"])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_target_inside_the_store_is_refused(tmp_path, inside, dry_run):
    world = World(tmp_path)
    (tmp_path / "link").symlink_to(world.store)
    before = sorted(path for path in world.store.rglob("*") if path.is_dir())

    for store in (world.store, tmp_path / "link"):
        with pytest.raises(Refused) as caught:
            world.handle().restore("first", to=store / inside, dry_run=dry_run)
        assert "inside the store" in str(caught.value)

    assert sorted(path for path in world.store.rglob("*") if path.is_dir()) == before
