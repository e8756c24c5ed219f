"""The numbers of the native protocol: request codes, response codes, languages and versions; our own fields.

Plain integers, because they are compared on every request; `request_name` is for people. Codes from
30001 up are iotmq's own and are described in docs/reference/wire-protocol.md.
"""

from __future__ import annotations

from typing import Final


class RequestCode:
    """Number the requests of the protocol."""

    SEND_MESSAGE: Final = 10
    PULL_MESSAGE: Final = 11
    QUERY_MESSAGE: Final = 12
    QUERY_CONSUMER_OFFSET: Final = 14
    UPDATE_CONSUMER_OFFSET: Final = 15
    UPDATE_AND_CREATE_TOPIC: Final = 17
    GET_ALL_TOPIC_CONFIG: Final = 21
    UPDATE_BROKER_CONFIG: Final = 25
    GET_BROKER_CONFIG: Final = 26
    TRIGGER_DELETE_FILES: Final = 27
    GET_BROKER_RUNTIME_INFO: Final = 28
    SEARCH_OFFSET_BY_TIMESTAMP: Final = 29
    GET_MAX_OFFSET: Final = 30
    GET_MIN_OFFSET: Final = 31
    GET_EARLIEST_MESSAGE_STORE_TIME: Final = 32
    VIEW_MESSAGE_BY_ID: Final = 33
    HEART_BEAT: Final = 34
    UNREGISTER_CLIENT: Final = 35
    CONSUMER_SEND_MESSAGE_BACK: Final = 36
    END_TRANSACTION: Final = 37
    GET_CONSUMER_LIST_BY_GROUP: Final = 38
    CHECK_TRANSACTION_STATE: Final = 39
    NOTIFY_CONSUMER_IDS_CHANGED: Final = 40
    LOCK_BATCH_QUEUES: Final = 41
    UNLOCK_BATCH_QUEUES: Final = 42
    GET_ALL_CONSUMER_OFFSET: Final = 43
    GET_ALL_DELAY_OFFSET: Final = 45
    CHECK_CLIENT_CONFIG: Final = 46
    UPDATE_AND_CREATE_ACL_CONFIG: Final = 50
    DELETE_ACL_CONFIG: Final = 51
    GET_BROKER_CLUSTER_ACL_INFO: Final = 52
    UPDATE_GLOBAL_WHITE_ADDRESSES: Final = 53
    PUT_KV_CONFIG: Final = 100
    GET_KV_CONFIG: Final = 101
    DELETE_KV_CONFIG: Final = 102
    REGISTER_BROKER: Final = 103
    UNREGISTER_BROKER: Final = 104
    GET_ROUTE_INFO_BY_TOPIC: Final = 105
    GET_BROKER_CLUSTER_INFO: Final = 106
    UPDATE_AND_CREATE_SUBSCRIPTION_GROUP: Final = 200
    GET_ALL_SUBSCRIPTION_GROUP_CONFIG: Final = 201
    GET_TOPIC_STATS_INFO: Final = 202
    GET_CONSUMER_CONNECTION_LIST: Final = 203
    GET_PRODUCER_CONNECTION_LIST: Final = 204
    WIPE_WRITE_PERM_OF_BROKER: Final = 205
    GET_ALL_TOPIC_LIST_FROM_REGISTRY: Final = 206
    DELETE_SUBSCRIPTION_GROUP: Final = 207
    GET_CONSUME_STATS: Final = 208
    DELETE_TOPIC_IN_BROKER: Final = 215
    DELETE_TOPIC_IN_REGISTRY: Final = 216
    GET_KV_LIST_BY_NAMESPACE: Final = 219
    RESET_CONSUMER_CLIENT_OFFSET: Final = 220
    GET_CONSUMER_STATUS_FROM_CLIENT: Final = 221
    INVOKE_BROKER_TO_RESET_OFFSET: Final = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Final = 223
    GET_TOPICS_BY_CLUSTER: Final = 224
    QUERY_TOPIC_CONSUME_BY_WHO: Final = 300
    QUERY_CONSUME_TIME_SPAN: Final = 303
    GET_SYSTEM_TOPIC_LIST_FROM_REGISTRY: Final = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Final = 305
    CLEAN_EXPIRED_CONSUME_QUEUE: Final = 306
    GET_CONSUMER_RUNNING_INFO: Final = 307
    QUERY_CORRECTION_OFFSET: Final = 308
    CONSUME_MESSAGE_DIRECTLY: Final = 309
    SEND_MESSAGE_V2: Final = 310
    GET_UNIT_TOPIC_LIST: Final = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST: Final = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Final = 313
    CLONE_GROUP_OFFSET: Final = 314
    VIEW_BROKER_STATS_DATA: Final = 315
    CLEAN_UNUSED_TOPIC: Final = 316
    GET_BROKER_CONSUME_STATS: Final = 317
    UPDATE_REGISTRY_CONFIG: Final = 318
    GET_REGISTRY_CONFIG: Final = 319
    SEND_BATCH_MESSAGE: Final = 320
    QUERY_CONSUME_QUEUE: Final = 321
    QUERY_DATA_VERSION: Final = 322
    RESUME_CHECK_HALF_MESSAGE: Final = 323
    SEND_REPLY_MESSAGE: Final = 324
    SEND_REPLY_MESSAGE_V2: Final = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT: Final = 326
    ADD_WRITE_PERM_OF_BROKER: Final = 327
    GET_ALL_PRODUCER_INFO: Final = 328
    DELETE_EXPIRED_COMMIT_LOG: Final = 329
    GET_TOPIC_CONFIG: Final = 351
    LITE_PULL_MESSAGE: Final = 361
    RECALL_MESSAGE: Final = 370
    QUERY_ASSIGNMENT: Final = 400
    SET_MESSAGE_REQUEST_MODE: Final = 401
    POP_MESSAGE: Final = 200_050
    ACK_MESSAGE: Final = 200_051
    PEEK_MESSAGE: Final = 200_052
    CHANGE_MESSAGE_INVISIBLE_TIME: Final = 200_053
    NOTIFICATION: Final = 200_054
    POLLING_INFO: Final = 200_055
    BATCH_ACK_MESSAGE: Final = 200_151

    # Ours: an MQTT front end's delivery channel (docs/reference/wire-protocol.md).
    ATTACH_FILTERS: Final = 30_001
    DETACH_FILTERS: Final = 30_002
    DELIVER_RECORDS: Final = 30_003
    PUBLISH_TRANSIENT: Final = 30_004
    PUBLISH_DELAYED: Final = 30_005
    PUBLISH_REPLY: Final = 30_006
    RELEASE_PACKET_IDS: Final = 30_007
    LAST_BATCH_NUMBER: Final = 30_008
    # Ours: messages that wait for a time.
    LIST_TIMERS: Final = 30_030
    CANCEL_TIMER: Final = 30_031
    # Ours: more queues or fewer for a topic in use.
    GET_QUEUE_STATES: Final = 30_040
    ADD_QUEUES: Final = 30_041
    FREEZE_QUEUES: Final = 30_042
    THAW_QUEUES: Final = 30_043
    REMOVE_QUEUES: Final = 30_044
    GET_QUEUE_BOUNDS: Final = 30_045
    # Ours: the sessions of an MQTT front end.
    INTRODUCE_FRONT_END: Final = 30_050
    OPEN_SESSION: Final = 30_051
    SUBSCRIBE_SESSION: Final = 30_052
    UNSUBSCRIBE_SESSION: Final = 30_053
    REPORT_PROGRESS: Final = 30_054
    CLOSE_SESSION: Final = 30_055
    READ_LIGHT_QUEUE: Final = 30_056
    READ_RETAINED: Final = 30_057
    CLAIM_SESSIONS: Final = 30_058
    DELIVER_QUEUED: Final = 30_059
    MISSED_QUEUES: Final = 30_060
    FENCE_SESSION: Final = 30_061
    JOIN_SHARES: Final = 30_062
    REPORT_SHARES: Final = 30_063
    CLAIM_EXCLUSIVE: Final = 30_066
    LIST_FRONT_ENDS: Final = 30_067
    DRAIN_FRONT_END: Final = 30_068
    ORDER_DRAIN: Final = 30_069
    HAND_OUT_SHARES: Final = 30_064
    WITHDRAW_SHARES: Final = 30_065
    LIST_SESSIONS: Final = 30_070
    GET_SESSION: Final = 30_071
    KICK_SESSION: Final = 30_072
    PURGE_SESSION: Final = 30_073
    LIST_SHARES: Final = 30_074
    REPORT_CLIENTS: Final = 30_077
    # Ours: questions of operators about one process, and those passed on to a front end.
    INSPECT: Final = 30_075
    INSPECT_FRONT_END: Final = 30_076
    # Ours: the masters of all broker names, told by a registry when they change.
    WATCH_MASTERS: Final = 30_080
    # Ours: between the members of a replicated broker.
    MEMBER_MESSAGE: Final = 30_090
    GET_MEMBER_STATUS: Final = 30_091
    HAND_OVER: Final = 30_092
    BEGIN_COPY: Final = 30_093
    READ_COPY: Final = 30_094
    END_COPY: Final = 30_095
    RELAY_CLIENT: Final = 30_096
    GET_LOG_CHECKSUM: Final = 30_097
    ADD_MEMBER: Final = 30_098
    REMOVE_MEMBER: Final = 30_099
    # Ours: every client of a broker with its groups, in parts.
    LIST_CLIENTS: Final = 30_020


class ResponseCode:
    """The numbers of responses."""

    SUCCESS: Final = 0
    SYSTEM_ERROR: Final = 1
    SYSTEM_BUSY: Final = 2
    REQUEST_CODE_NOT_SUPPORTED: Final = 3
    FLUSH_DISK_TIMEOUT: Final = 10
    SLAVE_NOT_AVAILABLE: Final = 11
    FLUSH_SLAVE_TIMEOUT: Final = 12
    MESSAGE_ILLEGAL: Final = 13
    SERVICE_NOT_AVAILABLE: Final = 14
    NO_PERMISSION: Final = 16
    TOPIC_NOT_EXIST: Final = 17
    PULL_NOT_FOUND: Final = 19
    PULL_RETRY_IMMEDIATELY: Final = 20
    PULL_OFFSET_MOVED: Final = 21
    QUERY_NOT_FOUND: Final = 22
    SUBSCRIPTION_PARSE_FAILED: Final = 23
    SUBSCRIPTION_NOT_EXIST: Final = 24
    SUBSCRIPTION_NOT_LATEST: Final = 25
    SUBSCRIPTION_GROUP_NOT_EXIST: Final = 26
    FILTER_DATA_NOT_EXIST: Final = 27
    FILTER_DATA_NOT_LATEST: Final = 28
    NO_BUYER_ID: Final = 204
    NOT_IN_CURRENT_UNIT: Final = 205
    CONSUMER_NOT_ONLINE: Final = 206
    INVALID_PARAMETER: Final = 29
    CONSUME_MESSAGE_TIMEOUT: Final = 207
    NO_MESSAGE: Final = 208
    # Of pops; the same numbers as those of access control, as RocketMQ 5 has it.
    POLLING_FULL: Final = 209
    POLLING_TIMEOUT: Final = 210
    ACL_UPDATE_FAILED: Final = 209
    ACL_DELETE_FAILED: Final = 210
    ACL_WHITE_LIST_FAILED: Final = 211
    SESSION_LOST: Final = 30101
    TOO_MANY_WAITING: Final = 30102
    BATCH_OUT_OF_ORDER: Final = 30103


class LanguageCode:
    """The implementation language a peer claims; the number is its byte in a binary header."""

    JAVA: Final = 0
    CPP: Final = 1
    DOTNET: Final = 2
    PYTHON: Final = 3
    DELPHI: Final = 4
    ERLANG: Final = 5
    RUBY: Final = 6
    OTHER: Final = 7
    HTTP: Final = 8
    GO: Final = 9
    PHP: Final = 10
    OMS: Final = 11
    RUST: Final = 12
    NODE_JS: Final = 13


class Version:
    """Peer versions that switch a behaviour; ordinals of a list, not dotted numbers."""

    TELLS_STATUS: Final = 28
    TELLS_RUNNING_INFO: Final = 62
    HONOURS_MAX_RECONSUME_TIMES: Final = 121
    STANDARD_JSON: Final = 401
    OURS: Final = 409
    # The first of 5.0; behind it there is only 4.9.9.
    HAS_TIMERS: Final = 412


class Flag:
    """Bits of a command's flag field."""

    RESPONSE: Final = 1
    ONEWAY: Final = 2


class Serialize:
    """The encodings of a header: the top byte of the header length word."""

    JSON: Final = 0
    BINARY: Final = 1


# Fields of iotmq's own in the header of sends; other brokers pass them over.
# The sender does not know whether the message, or batch, is stored already.
REPEAT_FIELD: Final = "isRepeat"
# Messages of the batch have MQTT_PACKET_ID.
PACKET_IDS_FIELD: Final = "hasPacketIds"
# The first message of the batch has BATCH_NUMBER.
NUMBERED_FIELD: Final = "isNumbered"
# In the answer to a heartbeat: how a batch may be compressed as a whole, by names separated by commas.
BATCH_COMPRESSION_FIELD: Final = "batchCompression"
# In the header of a refusal (14) by a member of a replicated broker: "false" when another member is master.
IS_MASTER_FIELD: Final = "isMaster"


def _constants(numbers: type) -> dict[str, int]:
    return {name: value for name, value in vars(numbers).items() if name.isupper() and isinstance(value, int)}


LANGUAGES: Final[dict[str, int]] = _constants(LanguageCode)
LANGUAGE_NAMES: Final[dict[int, str]] = {code: name for name, code in LANGUAGES.items()}

_REQUEST_NAMES: Final = {code: name for name, code in _constants(RequestCode).items()}


def request_name(code: int) -> str:
    """Return the name of a request code; `"UNKNOWN"` keeps the number of metric labels bounded."""
    return _REQUEST_NAMES.get(code, "UNKNOWN")
