"""Change the accounts of brokers with access control while they run (requests 50 to 53)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from iotmq.client.admin.asking import Asking
from iotmq.client.transport.calls import ask_masters
from iotmq.errors import ClientError
from iotmq.remoting.codes import RequestCode


class AccountsVersion(msgspec.Struct, kw_only=True):
    """The state of a broker's accounts; different after each change."""

    counter: int = 0
    timestamp: int = 0


class AccessAdmin(Asking):
    """Change accounts at all brokers, or those named; returns their names. BrokerError when one refuses.

    Brokers read their files by themselves: a broker that is away keeps the accounts it has.
    """

    async def put(
        self,
        access_key: str,
        *,
        secret_key: str = "",
        addresses: Sequence[str] = (),
        is_admin: bool | None = None,
        default_topic: str = "",
        default_group: str = "",
        topics: Mapping[str, str] | None = None,
        groups: Mapping[str, str] | None = None,
        default_mqtt_topic: str = "",
        mqtt_topics: Mapping[str, str] | None = None,
        broker_names: Collection[str] = (),
    ) -> list[str]:
        """Make an account, or change what is given of one. Permissions are DENY, PUB, SUB or PUB|SUB.

        `mqtt_topics` are filters of the MQTT topics under which it may send to devices (PUB) or not (DENY);
        the first that matches decides, and none leaves it to `default_mqtt_topic`.
        """
        for name in (*(topics or ()), *(groups or ())):
            if "," in name or "=" in name:
                raise ClientError(f"invalid topic or group {name!r}: a name has no , and no =")
        for name in mqtt_topics or ():
            if any(character in name for character in ",={}"):
                raise ClientError(f"invalid filter {name!r}: here it has no , = {{ or }}")
        ext = {"accessKey": access_key}
        fields = {
            "secretKey": secret_key,
            "whiteRemoteAddress": ",".join(addresses),
            "defaultTopicPerm": default_topic,
            "defaultGroupPerm": default_group,
            "topicPerms": _pairs(topics),
            "groupPerms": _pairs(groups),
            "defaultMqttTopicPerm": default_mqtt_topic,
            "mqttTopicPerms": _pairs(mqtt_topics),
        }
        ext.update({name: value for name, value in fields.items() if value})
        if is_admin is not None:
            ext["admin"] = "true" if is_admin else "false"
        return await self._ask(
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, ext, f"account {access_key}", broker_names
        )

    async def delete(self, access_key: str, broker_names: Collection[str] = ()) -> list[str]:
        """Delete an account."""
        ext = {"accessKey": access_key}
        return await self._ask(RequestCode.DELETE_ACL_CONFIG, ext, f"account {access_key}", broker_names)

    async def set_white_addresses(
        self, addresses: Sequence[str], broker_names: Collection[str] = ()
    ) -> list[str]:
        """Let these addresses do everything without an account, and no others."""
        ext = {"globalWhiteAddrs": ",".join(addresses)}
        return await self._ask(
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRESSES, ext, "white addresses", broker_names
        )

    async def versions(self, broker_names: Collection[str] = ()) -> dict[str, AccountsVersion]:
        """Return the version of each broker's accounts, by broker name."""
        answers = await ask_masters(
            self._client,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
            doing="asking for the accounts' version",
            broker_names=broker_names,
        )
        return {name: _version(answer.ext.get("version", "")) for name, answer in answers.items()}

    async def _ask(
        self, code: int, ext: dict[str, str], doing: str, broker_names: Collection[str]
    ) -> list[str]:
        answers = await ask_masters(self._client, code, ext, doing=doing, broker_names=broker_names)
        return sorted(answers)


def _pairs(permissions: Mapping[str, str] | None) -> str:
    return ",".join(f"{name}={permission}" for name, permission in (permissions or {}).items())


def _version(text: str) -> AccountsVersion:
    try:
        return msgspec.json.decode(text, type=AccountsVersion)
    except msgspec.DecodeError as error:
        raise ClientError(f"the broker's version of its accounts cannot be read: {error}") from error
