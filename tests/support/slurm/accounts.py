"""The accounts, users and QoS of the lab, as sacctmgr commands. Runs nothing."""

from __future__ import annotations

from collections.abc import Sequence

_ALL_QOS = "qos=normal,low,high,scavenger,limited,tiny"


def account_stages(users: Sequence[str]) -> list[list[str]]:
    """sacctmgr's words, a command a string, by stage: a stage needs those before it, its own
    commands may run together.

    All users are in physics, the first also in chem, root in staff and its admin. The first user
    has the WCKeys paper1 and paper2, the second paper1.
    """
    everyone = ",".join(users)
    return [
        ["add cluster lab"],
        [
            "add qos scavenger set Priority=0 PreemptMode=cancel GraceTime=0",
            "add qos low set Priority=10 PreemptMode=requeue",
            "add qos limited set Priority=50 MaxJobsPerUser=2 MaxTRESPerUser=cpu=6",
            "add qos tiny set Priority=50 MaxSubmitJobsPerUser=1 MaxWall=00:10:00",
            "modify qos normal set Priority=100",
        ],
        ["add qos high set Priority=1000 Preempt=low,scavenger"],
        ["add account physics Organization=lab fairshare=60"],
        ["add account chem Organization=lab fairshare=40"],
        ["add account staff Organization=lab fairshare=10"],
        [f"add user {everyone} account=physics defaultaccount=physics"],
        [f"add user {users[0]} account=chem"],
        ["add user root account=staff defaultaccount=staff adminlevel=Admin"],
        [f"modify user where name={everyone},root set {_ALL_QOS} defaultqos=normal"],
        [f"add user {','.join(users[:2])} wckey=paper1"],
        [f"add user {users[0]} wckey=paper2"],
    ]
