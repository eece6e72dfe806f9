"""The page about the loss of a region: its files fit each place. `make failovers ARGS="--patroni 10"` runs them."""

from __future__ import annotations

from holdfast_proofs.failovers.patroni import PAGE, files_of, filled

ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")


def test_each_place_gets_its_own_name_and_the_list_of_all() -> None:
    shown = files_of(PAGE)
    etcd = filled(shown["etcd"], 2, ADDRESSES, {}).split()
    assert etcd[:3] == ["etcd", "--name", "db2"]
    assert etcd[etcd.index("--listen-peer-urls") + 1] == "http://10.0.0.2:2380"
    members = "db1=http://10.0.0.1:2380,db2=http://10.0.0.2:2380,db3=http://10.0.0.3:2380"
    assert etcd[etcd.index("--initial-cluster") + 1] == members
    patroni = filled(shown["patroni.yml"], 3, ADDRESSES, {"nofailover: false": "nofailover: true"})
    for line in ("name: db3", "  listen: 10.0.0.3:5432", "  hosts: 10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379"):
        assert line in patroni.splitlines()
    assert "nofailover: true" in patroni


def test_no_commit_counts_on_one_server_alone() -> None:
    settings = files_of(PAGE)["patroni.yml"]
    assert "synchronous_mode_strict: true" in settings
    assert 'synchronous_commit: "on"' in settings
