"""Every maximum that a peer can run into, in one place; each has a test at the limit and one past it.

`bounds` says which of them bound what grows from input without being one input.

Values are hard limits of formats (the first block of each section) or defaults of settings that
bear the same name. Sizes are bytes and counts are items, unless a name says otherwise.
"""

from typing import Final

# Records (docs/reference/formats.md). The first two are widths of fields on disk and cannot be raised.
TOPIC_BYTES_MAX: Final = 127
PROPERTIES_BYTES_MAX: Final = 32_767
RECORD_BYTES_MAX: Final = 4 * 1024 * 1024
BATCH_RECORDS_MAX: Final = 65_536
# A compressed body may not grow past the first; one decode of a pull response into columns makes at
# most the second of body bytes, however well they were compressed, and picks out that many properties.
INFLATED_BODY_BYTES_MAX: Final = 4 * 1024 * 1024
COLUMN_BYTES_MAX: Final = 256 * 1024 * 1024
COLUMN_PROPERTIES_MAX: Final = 64
# One query by key gives at most so many records, and looks at so many entries of the key index and, where
# hashes are alike, so many records: senders choose the keys, and equal hashes are easy to make.
INDEX_QUERY_RECORDS_MAX: Final = 64
INDEX_LOOKUP_ENTRIES_MAX: Final = 262_144
INDEX_CANDIDATES_MAX: Final = 1_024

# Native protocol: one frame, its header, and what one connection may hold.
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
# A record goes to consumers and to other members in one frame, with a header: `store.record_bytes_max` is no
# more than this.
FRAMED_RECORD_BYTES_MAX: Final = FRAME_BYTES_MAX - 64 * 1024
HEADER_BYTES_MAX: Final = 1024 * 1024
HEADER_FIELDS_MAX: Final = 256
# JSON with unquoted map keys is put right byte by byte in Python, on the event loop: up to two microseconds a
# byte. The first is for answers to what was asked, and for registrations; the other for requests.
LENIENT_JSON_BYTES_MAX: Final = 512 * 1024
LENIENT_REQUEST_BYTES_MAX: Final = 8 * 1024
REQUESTS_IN_FLIGHT_MAX: Final = 16_384
# Frames that have not arrived whole, of all connections of one listener.
UNFINISHED_FRAMES_BYTES_MAX: Final = 256 * 1024 * 1024
NATIVE_CONNECTIONS_MAX: Final = 16_384
NATIVE_IDLE_S: Final = 120.0
WRITE_BUFFER_BYTES_MAX: Final = 64 * 1024 * 1024
# Time for the first byte and the handshake of a connection by TLS, and how many shake hands at a time.
TLS_HANDSHAKE_S: Final = 10.0
TLS_HANDSHAKES_MAX: Final = 1_024

# Broker and registry.
TOPICS_MAX: Final = 100_000
# Deleted topics that the log still has records of.
DELETED_TOPICS_MAX: Final = 100_000
QUEUES_PER_TOPIC_MAX: Final = 1_024
# Sends that wait until topics.json has the topic they made.
SENDS_WAITING_FOR_TOPIC_BYTES_MAX: Final = 16 * 1024 * 1024
# Of a record or a file, as read from the disk. Nothing vouches for it: one flipped bit must not lead to
# offsets whose bytes (20 each) nobody can count any more.
QUEUE_OFFSET_MAX: Final = 1 << 56
GROUPS_MAX: Final = 100_000
# Groups that go with their last member; each has up to two topics of its own.
EPHEMERAL_GROUPS_MAX: Final = 4_096
GROUP_BYTES_MAX: Final = 255
CLIENTS_PER_CONNECTION_MAX: Final = 1_024
HEARTBEAT_GROUPS_MAX: Final = 1_024
HEARTBEAT_SUBSCRIPTIONS_MAX: Final = 1_024
# All of a heartbeat's groups together.
HEARTBEAT_SUBSCRIPTIONS_TOTAL_MAX: Final = 16_384
HEARTBEAT_BYTES_MAX: Final = 1024 * 1024
# Eight of the widest topics; each is another queue to look at, and to name in the answer.
LOCKED_QUEUES_PER_REQUEST_MAX: Final = 8_192
# Queues that are locked, by all groups; about 500 bytes each. Clients say the name of the broker with each.
QUEUE_LOCKS_MAX: Final = 262_144
LOCKED_BROKER_NAME_BYTES_MAX: Final = 255
CONSUMER_OFFSET_PAIRS_MAX: Final = 200_000
# Of a table, from a replication master; one entry is past the size that pieces are filled up to.
TABLE_PIECE_BYTES_MAX: Final = 4 * 1024 * 1024
CLIENT_ID_BYTES_MAX: Final = 255
HELD_PULLS_MAX: Final = 100_000
HOLD_MS_MAX: Final = 30_000
# Consumption by message: what a group has popped of a queue and is not done with, 1.2 KB for 64 that stand
# together (5 to 11 KB in the order of keys, and counted as four), so at most 180 MB for all groups; the
# queues of groups that are known; how long a message may be kept from others.
POP_IN_FLIGHT_MAX: Final = 10_000
POP_BLOCKS_MAX: Final = 65_536
POP_QUEUES_MAX: Final = 65_536
POP_INVISIBLE_MS_MAX: Final = 12 * 3_600 * 1_000
# Acknowledgements in one request, each of as many messages as a pop gives, and some between them.
POP_ACKS_MAX: Final = 1_024
POP_ACK_BITS_BYTES_MAX: Final = 8_192
# All of one request: they keep the event loop for some milliseconds.
POP_ACKED_MAX: Final = 32_768
POP_RECEIPT_BYTES_MAX: Final = 1_024
# Attempts to pop that may be made again, each with up to 32 offsets.
POP_ATTEMPTS_MAX: Final = 10_000
POP_ATTEMPT_ID_BYTES_MAX: Final = 255
COLD_READS_MAX: Final = 4_096
# Transactions without an end take memory, and so do the last ends, which make a repeated one harmless.
TRANSACTIONS_PENDING_MAX: Final = 100_000
TRANSACTIONS_ENDED_REMEMBERED_MAX: Final = 16_384
# Replies handed to clients that have not said yet that they took them.
REPLIES_IN_FLIGHT_MAX: Final = 4_096
# What one native client of ours remembers: routes, which it asks for again every half minute, and addresses
# with how often they failed. In a cluster of containers the address of a broker changes with each start.
ROUTES_KNOWN_MAX: Final = 10_000
ADDRESSES_KNOWN_MAX: Final = 4_096
# Queues to read and to write that a registry may give one topic on all its brokers.
ROUTE_QUEUES_MAX: Final = 262_144
# Questions about transactions that one producer of ours looks into at a time; the broker asks again.
TRANSACTION_CHECKS_IN_FLIGHT_MAX: Final = 1_024
# What a client of ours says of messages and has not written to the trace topic yet: entries, and their bytes.
TRACE_ENTRIES_MAX: Final = 16_384
TRACE_BYTES_MAX: Final = 4 * 1024 * 1024
# Events of its connections that a client of ours has not told the application yet.
CONNECTION_EVENTS_MAX: Final = 1_024
# Topics, queues and groups that statistics are kept for, in each of six tables; about 1 KiB each after a day.
STATISTICS_KEYS_MAX: Final = 16_384
# Statistics that are kept on the disk: names of each table in one step (further ones count together), the
# bytes of a name, names of one answer and their steps together, names of a list, and a block of a file.
# Client id prefixes that a front end counts, and those of one report of it.
STATISTICS_NAMES_MAX: Final = 1_000
STATISTICS_NAME_BYTES_MAX: Final = 255
STATISTICS_ASKED_MAX: Final = 16
STATISTICS_POINTS_MAX: Final = 8_000
STATISTICS_LISTED_MAX: Final = 2_000
STATISTICS_BLOCK_BYTES_MAX: Final = 16 * 1024 * 1024
CLIENT_PREFIXES_MAX: Final = 1_000
# The history of a process: series (10 KB each), the characters of their names, and those of one answer.
HISTORY_SERIES_MAX: Final = 500
HISTORY_NAME_CHARACTERS_MAX: Final = 512
HISTORY_ASKED_MAX: Final = 48
# Pairs of group and topic whose lag is a metric, and the queues that are looked at for them every 10 s.
LAG_PAIRS_MAX: Final = 1_000
LAG_QUEUES_MAX: Final = 10_000
# Spans that wait to be exported, some 1 KiB each, and how many go together; deliveries of one message that
# have a span; header fields and attributes of the settings.
SPANS_WAITING_MAX: Final = 8_192
SPANS_PER_EXPORT_MAX: Final = 512
SPANS_OF_A_MESSAGE_MAX: Final = 16
TELEMETRY_HEADERS_MAX: Final = 32
TELEMETRY_ATTRIBUTES_MAX: Final = 64
# Topics that /metrics/topics shows in one answer, and the characters of its pattern.
TOPIC_METRICS_MAX: Final = 1_000
TOPIC_PATTERN_CHARACTERS_MAX: Final = 256
# Messages that wait for a time; how many of them one answer lists, and the text that takes one back.
TIMERS_PENDING_MAX: Final = 10_000_000
TIMERS_LISTED_MAX: Final = 1_000
RECALL_HANDLE_BYTES_MAX: Final = 2_048
# What administrators ask: the body of one answer, answers that are worked on in slices, clients and queue
# entries in one answer, bytes of records found by key in one, requests passed on to clients, clients that one
# question about a whole group is passed on to, and events about consumers whose offset was moved (each stored
# as a message) in a second.
ANSWER_BODY_BYTES_MAX: Final = 15 * 1024 * 1024
LONG_ANSWERS_MAX: Final = 64
CLIENTS_LISTED_MAX: Final = 1_024
QUEUE_ENTRIES_LISTED_MAX: Final = 1_024
QUERY_BYTES_MAX: Final = 8 * 1024 * 1024
RELAYS_MAX: Final = 256
RELAYED_CLIENTS_MAX: Final = 1_024
OFFSET_MOVED_EVENTS_PER_S_MAX: Final = 20
PULL_RECORDS_DEFAULT_MAX: Final = 32
PULL_BYTES_DEFAULT_MAX: Final = 256 * 1024
PULL_RECORDS_MAX: Final = 65_536
PULL_BYTES_MAX: Final = 4 * 1024 * 1024
PULL_SCAN_ENTRIES_MIN: Final = 800
# Ranges of lost records that one answer names; a read ends before one more.
PULL_LOST_RANGES_MAX: Final = 64
# Starts of a broker that its log remembers; of more, the oldest two become one.
LOG_GENERATIONS_MAX: Final = 1024
# Subscriptions by SQL92: the text, what it becomes, and what one pull may cost. A search looks through a
# property of up to 32 KB, and a pull stops looking at records after so many bytes of work.
FILTER_EXPRESSION_BYTES_MAX: Final = 8 * 1024
FILTER_NODES_MAX: Final = 1_024
FILTER_DEPTH_MAX: Final = 64
FILTER_PROPERTIES_MAX: Final = 64
FILTER_SEARCHES_MAX: Final = 64
FILTER_WORK_BYTES_MAX: Final = 4 * 1024 * 1024
FILTER_CACHE_MAX: Final = 1_024
CONSUMER_FILTERS_MAX: Final = 10_000
# Access control: the file of accounts, and addresses whose place on the white list is remembered.
ACL_FILE_BYTES_MAX: Final = 1024 * 1024
ACL_ACCOUNTS_MAX: Final = 10_000
ACL_KEY_BYTES_MAX: Final = 1_024
ACL_DEVICE_FILTERS_MAX: Final = 256
ACL_ADDRESSES_REMEMBERED_MAX: Final = 4_096
BROKERS_MAX: Final = 1_024
# Topics of all brokers of a registry, each counted for each broker; as many of brokers that have left.
REGISTRY_TOPICS_MAX: Final = 1_000_000
REGISTRY_NAME_BYTES_MAX: Final = 255
# What a compressed registration may be of: so many topics with the longest names take 15.4 MB.
REGISTRATION_INFLATED_BYTES_MAX: Final = 32 * 1024 * 1024
# A registration of more topics is compressed: as JSON these are 1.5 MB with the longest names, and a frame
# takes 43,919 such topics.
REGISTRATION_PLAIN_TOPICS_MAX: Final = 4_096
# The body of a registration: the header has the rest of the frame.
REGISTRATION_BYTES_MAX: Final = FRAME_BYTES_MAX - 64 * 1024
# A registry decodes longer ones, and those that are compressed, off the event loop, one after the other: so
# many may wait for that, with so many bytes.
REGISTRATION_AT_ONCE_BYTES_MAX: Final = 8 * 1024
REGISTRATIONS_WAITING_MAX: Final = 1_024
REGISTRATIONS_WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
# The number of a master's time (stateVersion), as far as Java's long goes; clients that wait for another
# master, at one registry, and how long a request waits for that.
EPOCH_MAX: Final = 2**63 - 1
MASTER_WATCHERS_MAX: Final = 16_384
MASTER_WATCH_MS_MAX: Final = 60_000
# What a registry calls one state of its masters, which its clients say again.
MASTERS_VERSION_CHARACTERS_MAX: Final = 255
# Key-value settings of a registry: one text, and all of them, which are written as a whole.
KV_TEXT_BYTES_MAX: Final = 32 * 1024
KV_BYTES_MAX: Final = 4 * 1024 * 1024
# Settings to be changed while a broker or registry runs, as lines of text.
SETTINGS_TEXT_BYTES_MAX: Final = 64 * 1024
# Replication: the number of a member, and what a consensus store holds of a broker name. The signs of life of
# all members fit into one answer, with what Kubernetes adds to each.
# Numbers of brokers of one name on the wire are 64 bits; nobody has as many.
BROKER_ID_MAX: Final = 1_000_000
# Slaves of one master in the way of RocketMQ 4.9, and networks they may come from.
HA_CONNECTIONS_MAX: Final = 16
HA_NETWORKS_MAX: Final = 64
# What a master has sent of a record that is not whole yet: no record has 16 MiB.
HA_UNFINISHED_BYTES_MAX: Final = 16 * 1024 * 1024
REPLICATION_MEMBER_MAX: Final = 127
REPLICATION_MEMBERS_MAX: Final = 15
REPLICATION_ADDRESS_CHARACTERS_MAX: Final = 300
REPLICATION_INCARNATION_CHARACTERS_MAX: Final = 64
REPLICATION_EPOCHS_MAX: Final = 1_000
# How far an epoch that another member names may be past the latest one known here: each was promised once.
REPLICATION_EPOCHS_AHEAD_MAX: Final = 1_000_000
# A copy of a member's data: how many a master makes at a time, the files of one, what one answer has of a
# file, and the requests for pieces that may wait.
REPLICATION_COPIES_MAX: Final = 2
COPY_FILES_MAX: Final = 50_000
COPY_PIECE_BYTES_MAX: Final = 1024 * 1024
COPY_READS_MAX: Final = 16
# Consumer groups and their members that a follower knows of, others are left out; and how many may change
# before all are sent again.
COPIED_CONSUMERS_MAX: Final = 262_144
CHANGED_CONSUMERS_MAX: Final = 16_384
# What a member passes on to the master: requests of all its clients without an answer yet, their bytes, and
# the bytes of one connection. A connection has REQUESTS_IN_FLIGHT_MAX requests at most anyway.
RELAYED_REQUESTS_MAX: Final = 131_072
RELAYED_BYTES_MAX: Final = 256 * 1024 * 1024
RELAYED_BYTES_OF_CONNECTION_MAX: Final = 32 * 1024 * 1024
# Checksums of the log that a member computes at once, the bytes of one, and how fast they may be read.
REPLICATION_CHECKSUMS_MAX: Final = 4
REPLICATION_CHECKSUM_BYTES_MAX: Final = 64 * 1024 * 1024
REPLICATION_CHECKSUM_BYTES_PER_S_MIN: Final = 1024 * 1024
REPLICATION_CHECKSUM_BYTES_PER_S_MAX: Final = 10**10
CONSENSUS_STATE_BYTES_MAX: Final = 64 * 1024
CONSENSUS_BEAT_BYTES_MAX: Final = 1_024
CONSENSUS_ANSWER_BYTES_MAX: Final = 1024 * 1024
FILTERS_PER_CHANNEL_MAX: Final = 10_000_000
# Front ends of one broker whose filters without wildcards may be marks: their numbers have 16 bits.
MARKING_CHANNELS_MAX: Final = 65_535
# MQTT front ends in other processes: the name of one, sessions in one request, queues of one session,
# records of one read, and queues whose pushes were not sent, by number; past that all count as missed.
# Sessions in one answer to an operator.
FRONT_END_NAME_BYTES_MAX: Final = 255
MQTT_WORKERS_MAX: Final = 256
# What operators ask one process about itself: a question, an answer, and questions that wait for answers.
INSPECTION_QUESTION_BYTES_MAX: Final = 256 * 1024
INSPECTION_ANSWER_BYTES_MAX: Final = 1024 * 1024
INSPECTIONS_PENDING_MAX: Final = 64
# Lists of connected clients: a pattern of a filter, clients or subscriptions of one page, messages of one
# of a queue, clients that one request disconnects and those it names, and refusals that a process remembers.
CLIENT_PATTERN_CHARACTERS_MAX: Final = 1_024
CONNECTIONS_LISTED_MAX: Final = 1_000
SESSION_QUEUE_LISTED_MAX: Final = 100
KICKED_CLIENTS_MAX: Final = 10_000
KICKED_NAMES_MAX: Final = 500
REFUSALS_REMEMBERED_MAX: Final = 1_024
# What a worker and its supervisor say in one piece, mostly metrics: past it one of them is broken.
WORKER_FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
SESSIONS_PER_REQUEST_MAX: Final = 1_024
# Openings of sessions and reads of retained messages that wait for one broker, because it is slow or has just
# gone, and the bytes of their requests, in which a will is the largest: their devices may have left long
# since. Past it they are refused.
SESSION_OPENINGS_WAITING_MAX: Final = 65_536
SESSION_OPENINGS_WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
# Changes of sessions in one record: what is larger is stored session by session, or refused alone.
SESSION_RECORD_BYTES_MAX: Final = RECORD_BYTES_MAX - 1024
# Filters, and messages in flight, that one change of a session names; a report with more is several changes.
# The rest of the record is for numbers.
SESSION_NAMES_PER_CHANGE_MAX: Final = 700
SESSION_QUEUES_MAX: Final = 65_536
QUEUE_READ_RECORDS_MAX: Final = 1_024
MISSED_QUEUES_MAX: Final = 65_536
SESSIONS_LISTED_MAX: Final = 1_024
SHARES_LISTED_MAX: Final = 1_024
# Shared subscriptions of one broker: the name of a group, groups (one for each name and filter), members of
# one, messages of one that are read and not acknowledged, credit of a member, bytes that a client may hold in
# all its groups together (past them it gets nothing more), of how many members and messages one request of a
# front end tells.
SHARE_NAME_BYTES_MAX: Final = 255
SHARE_GROUPS_MAX: Final = 10_000
SHARE_MEMBERS_MAX: Final = 1_024
SHARE_IN_FLIGHT_MAX: Final = 4_096
SHARE_CREDIT_MAX: Final = 1_024
SHARE_CLIENT_BYTES_MAX: Final = 1024 * 1024
SHARE_REPORT_MEMBERS_MAX: Final = 1_024
SHARE_REPORT_POSITIONS_MAX: Final = 65_536
# Batches that were sent again and appended, and are not confirmed yet: past it their senders try later.
REPEATS_UNCONFIRMED_MAX: Final = 65_536
# Packet ids of QoS 2 that devices have not released, at one broker: how many, and the bytes of their keys and
# of what the database has beside them. Past either the oldest are forgotten: their devices have not been back
# for longest. The third is the body of one request that releases some.
RECEIVED_IDS_MAX: Final = 1_000_000
RECEIVED_IDS_BYTES_MAX: Final = 256 * 1024 * 1024
RELEASED_BODY_BYTES_MAX: Final = 1024 * 1024
# Producers that number their batches, of which a broker knows the last one: how many, and the bytes of their
# keys and of what the database has beside them. Past either those go that have sent nothing for longest.
BATCH_PRODUCERS_MAX: Final = 100_000
BATCH_PRODUCERS_BYTES_MAX: Final = 64 * 1024 * 1024
# Groups that one session may join: each message goes out to each of them.
MQTT_SHARES_PER_SESSION_MAX: Final = 64
# Looking up retained messages: what one turn of the broker's loop does of it for everybody together (a
# millisecond or two), and what looking at one topic counts for beside the bytes of its record.
RETAINED_TURN_WORK_BYTES_MAX: Final = 128 * 1024
RETAINED_LOOK_BYTES: Final = 1_024
# Shapes (at which levels the wildcards are) of the filters of all kept sessions of one broker, and of all
# clean sessions of one front end: a new topic is compared with each, a tenth of a microsecond for one.
FILTER_SHAPES_MAX: Final = 16_384
# And those of one session: each may match the same message.
MQTT_SHAPES_PER_SESSION_MAX: Final = 64
# All filters of one session, as UTF-8: a broker writes them whenever the session has changed (two ms).
MQTT_FILTER_BYTES_PER_SESSION_MAX: Final = 2 * 1024 * 1024
# Records that wait to be matched with the filters of clean sessions, at one broker, and calls of what comes
# behind them; records, with their matches, that wait to be written to subscribers, at one front end. Past a
# limit they are not put off any more. And what a broker hands to a front end at once.
DELIVERY_BACKLOG_BYTES_MAX: Final = 16 * 1024 * 1024
DELIVERY_BACKLOG_ITEMS_MAX: Final = 10_000
EGRESS_BACKLOG_BYTES_MAX: Final = 16 * 1024 * 1024
PUSH_BYTES_MAX: Final = 256 * 1024
# Pushes that a front end in another process has not taken; what comes on top is dropped and counted.
PUSHES_UNSENT_BYTES_MAX: Final = 16 * 1024 * 1024
# Filters that sessions have to themselves, at one broker.
EXCLUSIVE_SUBSCRIPTIONS_MAX: Final = 100_000

# MQTT. A topic is at most 65,535 bytes in the protocol; ours is shorter because it is stored as a
# property of every record.
MQTT_PACKET_BYTES_MAX: Final = 1024 * 1024
MQTT_TOPIC_BYTES_MAX: Final = 4_096
MQTT_TOPIC_LEVELS_MAX: Final = 128
# Levels of a filter with a wildcard: every topic as deep is compared with each shape (see FILTER_SHAPES_MAX).
# And the bytes that one table of a broker or front end remembers of topics.
MQTT_WILDCARD_LEVELS_MAX: Final = 32
MQTT_TOPIC_CACHE_BYTES_MAX: Final = 32 * 1024 * 1024
# Rewriting: the longest topic that patterns are tried on, because their time grows with its size; what one
# compiled pattern may take in memory; the length of its text; and how many rules there may be.
MQTT_REWRITE_TOPIC_BYTES_MAX: Final = 256
MQTT_REWRITE_PROGRAM_BYTES_MAX: Final = 1024 * 1024
MQTT_REWRITE_PATTERN_CHARACTERS_MAX: Final = 1_024
MQTT_REWRITES_MAX: Final = 256
MQTT_AUTO_SUBSCRIPTIONS_MAX: Final = 64
# Bridges to other brokers, the rules of one, its connections and the topics it reads; bytes of the names of
# the gateways that a message has passed, past which it goes no further.
BRIDGES_MAX: Final = 64
BRIDGE_RULES_MAX: Final = 256
BRIDGE_CONNECTIONS_MAX: Final = 64
BRIDGE_BROKER_TOPICS_MAX: Final = 256
BRIDGE_HOPS_BYTES_MAX: Final = 1_024
MQTT_BRIDGE_CLIENTS_MAX: Final = 1_024
# Bridges whose last word about themselves a front end keeps; those that are gone make room first.
MQTT_BRIDGE_STATES_MAX: Final = 1_024
# Routes, the conditions of one, the file of them, the payload that is read for fields of JSON (by default),
# and one value that a placeholder stands for, when it is not of the topic.
MQTT_ROUTES_MAX: Final = 10_000
MQTT_ROUTE_CONDITIONS_MAX: Final = 32
MQTT_ROUTES_FILE_BYTES_MAX: Final = 16 * 1024 * 1024
MQTT_ROUTE_JSON_BYTES_MAX: Final = 64 * 1024
MQTT_ROUTE_VALUE_BYTES_MAX: Final = 1_024
# Where devices are sent, as text, and how many a second when a front end is drained.
MQTT_SERVER_REFERENCE_CHARACTERS_MAX: Final = 1_024
DRAINED_PER_SECOND_MAX: Final = 10_000
MQTT_CLIENT_ID_BYTES_MAX: Final = 512
# A year: how long a message published to $delayed/SECONDS/... may wait.
MQTT_DELAY_S_MAX: Final = 366 * 24 * 3600
MQTT_CONNECTIONS_MAX: Final = 1_000_000
# Listeners beside that of mqtt.listen_port, the name of one, and the path of a Unix socket, which the kernel
# keeps in 108 bytes with a zero behind it.
MQTT_LISTENERS_MAX: Final = 64
MQTT_LISTENER_NAME_BYTES_MAX: Final = 32
UNIX_SOCKET_PATH_BYTES_MAX: Final = 107
# Authentication of devices: the data of one CONNECT or AUTH, a user's name and password, the file of users,
# the work one guess at a password may be (RFC 7677 section 4 has the least; the most is a third of a second
# of a core), its salt, addresses whose failures are counted, and what about all CONNECTs hold whose devices
# are not known yet.
MQTT_AUTHENTICATION_DATA_BYTES_MAX: Final = 4 * 1024
MQTT_USER_NAME_BYTES_MAX: Final = 512
MQTT_PASSWORD_BYTES_MAX: Final = 8 * 1024
MQTT_USERS_FILE_BYTES_MAX: Final = 128 * 1024 * 1024
MQTT_USERS_MAX: Final = 500_000
# Text that is no plain ASCII is looked at character by character before anybody has proved anything.
SASLPREP_CHARACTERS_MAX: Final = 1_024
SCRAM_ITERATIONS_MIN: Final = 4_096
SCRAM_ITERATIONS_MAX: Final = 1_000_000
SCRAM_SALT_BYTES_MAX: Final = 64
# Hashes of passwords that come from elsewhere say themselves what they cost. The most is a second of a core.
PASSWORD_HASH_CHARACTERS_MAX: Final = 1_024
BCRYPT_COST_MAX: Final = 14
PBKDF2_ITERATIONS_MAX: Final = 2_000_000
# What a service says of one device: rows or entries of permissions, groups and roles, attributes, and the
# text of all of it.
LOOKED_UP_PERMISSIONS_MAX: Final = 1_024
LOOKED_UP_NAMES_MAX: Final = 256
LOOKED_UP_ATTRIBUTES_MAX: Final = 128
LOOKED_UP_BYTES_MAX: Final = 256 * 1024
# Plug-ins of amqtt: how many, events that wait for one, a message that one publishes, all that wait to be
# published, and answers about topics that are remembered.
MQTT_PLUGINS_MAX: Final = 32
MQTT_PLUGIN_EVENTS_MAX: Final = 4_096
MQTT_PLUGIN_MESSAGE_BYTES_MAX: Final = 1024 * 1024
MQTT_PLUGIN_MESSAGES_BYTES_MAX: Final = 4 * 1024 * 1024
MQTT_PLUGIN_ANSWERS_BYTES_MAX: Final = 16 * 1024 * 1024
MQTT_FAILING_ADDRESSES_MAX: Final = 16_384
# Users who were right from an address and so have a count of failures of their own there; 150 bytes each.
MQTT_PROVEN_USERS_MAX: Final = 131_072
MQTT_UNDECIDED_BYTES_MAX: Final = 64 * 1024 * 1024
# Permissions of devices: the file of rules, its rules, topics and names of one, rules that come with an
# identity, sets of rules that are shared by the devices they are for, refusing rules that are counted each.
# How many steps the comparison of a filter with the rules may take, about a microsecond each. Where others
# are asked: answers a connection remembers, questions under way, bytes of messages that wait for an answer.
MQTT_PERMISSIONS_FILE_BYTES_MAX: Final = 4 * 1024 * 1024
MQTT_PERMISSION_RULES_MAX: Final = 1_000
MQTT_PERMISSION_TOPICS_MAX: Final = 64
MQTT_PERMISSION_NAMES_MAX: Final = 10_000
MQTT_IDENTITY_RULES_MAX: Final = 256
MQTT_PERMISSION_SETS_MAX: Final = 1_024
MQTT_REFUSING_RULES_MAX: Final = 4_096
MQTT_PERMISSION_WORK_MAX: Final = 10_000
MQTT_PERMISSION_ANSWERS_MAX: Final = 64
MQTT_PERMISSION_QUESTIONS_MAX: Final = 4_096
# Wills with a delay of devices that have gone, of one front end, that are looked at when rules change.
MQTT_LEFT_WILLS_MAX: Final = 16_384
MQTT_PERMISSION_WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
# The authentication chain: links, bytes of the answers that one of them remembers, hashing by argon2id
# (memory in KiB, rounds, lanes), an answer of a service and a set of keys by HTTP, keys of one link, what a
# claim may be called, and names of groups and roles and attributes of one identity.
MQTT_LINKS_MAX: Final = 32
MQTT_ANSWERS_BYTES_MAX: Final = 64 * 1024 * 1024
ARGON2_MEMORY_KIB_MAX: Final = 256 * 1024
ARGON2_ROUNDS_MAX: Final = 32
ARGON2_LANES_MAX: Final = 16
MQTT_SERVICE_ANSWER_BYTES_MAX: Final = 64 * 1024
MQTT_TOKEN_KEYS_BYTES_MAX: Final = 256 * 1024
MQTT_TOKEN_KEYS_MAX: Final = 64
MQTT_CLAIM_NAME_CHARACTERS_MAX: Final = 256
MQTT_IDENTITY_NAMES_MAX: Final = 256
# Before a CONNECT is accepted: one packet (client id, will, user name and password at their longest are
# 230 KB), and what all connections of a front end hold together of packets and frames that have not come
# whole, or of what came behind a CONNECT. Past it connections that wait for more of theirs are closed; a
# CONNECT that comes whole needs none of it.
MQTT_CONNECT_BYTES_MAX: Final = 256 * 1024
MQTT_UNOPENED_BYTES_MAX: Final = 64 * 1024 * 1024
# Files of one listener that encrypts, and the length of a file's name (PATH_MAX without its zero).
# How many handshakes begin in one turn of the loop, half a millisecond each: with 4 the p99 of a device
# beside a flood is 5 ms, with 2 it is 2, and no fewer are done. How long a device may take to say goodbye.
MQTT_LISTENER_CERTIFICATES_MAX: Final = 256
MQTT_LISTENER_CRL_FILES_MAX: Final = 64
FILE_NAME_BYTES_MAX: Final = 4_095
TLS_HANDSHAKES_PER_TURN: Final = 2
TLS_SHUTDOWN_S: Final = 3.0
# Bytes that TLS holds each way before writing pauses, as a TCP transport does, or reading.
TLS_BUFFER_BYTES: Final = 64 * 1024
# A header of the PROXY protocol, networks that may send one.
PROXY_HEADER_BYTES_MAX: Final = 4_096
PROXY_NETWORKS_MAX: Final = 256
# The first record of a handshake: its header and what it may have [RFC 8446 section 5.1].
TLS_HELLO_BYTES_MAX: Final = 5 + 16_384
# Request line and headers that ask for a WebSocket, its path, and the origins of pages that may open one,
# with the name of each.
MQTT_WEBSOCKET_REQUEST_BYTES_MAX: Final = 8 * 1024
MQTT_WEBSOCKET_PATH_BYTES_MAX: Final = 255
MQTT_WEBSOCKET_ORIGINS_MAX: Final = 256
MQTT_WEBSOCKET_ORIGIN_BYTES_MAX: Final = 512
# Pings that are answered one by one of what was read at once; of more only the last one is.
MQTT_WEBSOCKET_PONGS_PER_READ_MAX: Final = 16
# Limits on devices: the highest rate, and burst, in messages or bytes a second; clients, users and addresses
# without a connection whose use of their limits is remembered, of each kind (some 300 bytes each); and
# connections that are counted for flapping.
MQTT_RATE_MAX: Final = 1 << 32
MQTT_IDLE_SCOPES_MAX: Final = 16_384
MQTT_FLAPPING_COUNTED_MAX: Final = 65_536
# Bans: exact names and addresses, networks, and patterns with the length of one; the bytes of a reason.
MQTT_BANS_MAX: Final = 100_000
MQTT_BANNED_NETWORKS_MAX: Final = 10_000
MQTT_BANNED_PATTERNS_MAX: Final = 64
MQTT_BAN_PATTERN_CHARACTERS_MAX: Final = 256
MQTT_BAN_REASON_CHARACTERS_MAX: Final = 256
# Packets of connected devices that have not come whole: how long one may take, beside the time for its bytes
# at the slowest rate, and all of them together, of large ones.
MQTT_PACKET_TIMEOUT_S: Final = 30.0
MQTT_PACKET_BYTES_PER_S_MIN: Final = 128
MQTT_UNFINISHED_BYTES_MAX: Final = 256 * 1024 * 1024
# Users' programs (mqtt.hooks): how many, decisions and events that wait for them, and the bytes of messages
# that are held until they have decided.
MQTT_HOOKS_MAX: Final = 16
HOOK_QUESTIONS_MAX: Final = 10_000
HOOK_EVENTS_WAITING_MAX: Final = 10_000
HOOK_EVENTS_BYTES_MAX: Final = 16 * 1024 * 1024
HOOK_HELD_BYTES_MAX: Final = 8 * 1024 * 1024
# Properties of one MQTT 5 packet: those of a message become properties of its record, where they are longer.
# Topic aliases cost their topic on each connection, one way from the device, one way to it.
MQTT_PROPERTIES_BYTES_MAX: Final = 12 * 1024
MQTT_USER_PROPERTIES_MAX: Final = 128
MQTT_TOPIC_ALIASES_MAX: Final = 32
# What a device may have sent without an answer, which it is told.
MQTT_RECEIVE_MAX: Final = 1_024
MQTT_SUBSCRIPTIONS_PER_PACKET_MAX: Final = 1_024
MQTT_SUBSCRIPTIONS_PER_SESSION_MAX: Final = 10_000
# How long a device is not read because of a SUBSCRIBE or UNSUBSCRIBE that a broker has not answered.
MQTT_ANSWER_TIMEOUT_S: Final = 60.0
MQTT_CONNECT_TIMEOUT_S: Final = 10.0
MQTT_IN_FLIGHT_MAX: Final = 1_024
MQTT_QUEUED_BYTES_MAX: Final = 4 * 1024 * 1024
# Messages of a kept session from the oldest that is in flight on, done or not: so far a device gets ahead of
# one acknowledgement that does not come (its window at least). 24 bytes each.
MQTT_FLIGHTS_MAX: Final = 2_048
# Clients of ours: what they have in flight when the server does not say less, and when it cannot say (before
# MQTT 5 some servers mix up what is more); what they take in a packet and in flight from a server; and what
# waits for a program that does not take it before a connection is not read.
MQTT_CLIENT_IN_FLIGHT_MAX: Final = 256
MQTT_CLIENT_IN_FLIGHT_UNTOLD_MAX: Final = 20
MQTT_CLIENT_PACKET_BYTES_MAX: Final = 256 * 1024 * 1024
MQTT_CLIENT_RECEIVE_MAX: Final = 1_024
MQTT_CLIENT_UNREAD_BYTES_MAX: Final = 4 * 1024 * 1024

# What the service manager is told of this process's state, which may repeat words of a peer: systemd drops
# datagrams above 4,096 bytes.
SERVICE_STATUS_BYTES_MAX: Final = 1_024

# A secret of the settings; of one that is elsewhere the name of the variable, the program with its arguments,
# and how long that may take.
SECRET_BYTES_MAX: Final = 64 * 1024
SECRET_VARIABLE_BYTES_MAX: Final = 255
SECRET_COMMAND_ARGUMENTS_MAX: Final = 64
SECRET_COMMAND_S: Final = 10.0

# Audit records of one process that wait to be stored, what one batch takes, and the text of one field.
AUDIT_RECORDS_MAX: Final = 10_000
AUDIT_BYTES_MAX: Final = 4 * 1024 * 1024
AUDIT_BATCH_BYTES_MAX: Final = 256 * 1024
AUDIT_TEXT_CHARACTERS_MAX: Final = 1_024
AUDIT_RECORDS_PER_S_MAX: Final = 1_000

# Traces of one front end: how many, what each keeps (events, and their bytes), how long one may last, what is
# looked at of a packet, what is kept of its payload and of a text, and packets in a second of all traces.
MQTT_TRACES_MAX: Final = 16
MQTT_TRACE_EVENTS_MAX: Final = 100_000
MQTT_TRACE_BYTES_MAX: Final = 8 * 1024 * 1024
MQTT_TRACE_S_MAX: Final = 24 * 3600
MQTT_TRACE_PACKET_BYTES_MAX: Final = 32 * 1024
MQTT_TRACE_PAYLOAD_BYTES_MAX: Final = 4 * 1024
MQTT_TRACE_TEXT_CHARACTERS_MAX: Final = 256
MQTT_TRACE_PACKETS_PER_S_MAX: Final = 2_000
# Events, and their bytes, of one answer.
MQTT_TRACE_PAGE_EVENTS_MAX: Final = 1_000
MQTT_TRACE_PAGE_BYTES_MAX: Final = 512 * 1024

# The HTTP port: connections at one time, bodies of their requests that are not answered yet, answers that are
# not read yet, tokens, and how long one has to be.
HTTP_CONNECTIONS_MAX: Final = 256
HTTP_BODIES_BYTES_MAX: Final = 64 * 1024 * 1024
HTTP_UNREAD_BYTES_MAX: Final = 64 * 1024 * 1024
HTTP_TOKENS_MAX: Final = 64
# Streams of events: at one time, of one caller, and what one has still to write.
HTTP_STREAMS_MAX: Final = 64
HTTP_STREAMS_PER_CALLER_MAX: Final = 16
HTTP_STREAM_WAITING_BYTES_MAX: Final = 2 * 1024 * 1024
# Replays of dead letters that go on at one time, and that are known with those that are over.
HTTP_REPLAYS_MAX: Final = 8
HTTP_REPLAYS_KEPT_MAX: Final = 64
HTTP_TOKEN_CHARACTERS_MIN: Final = 16

# The console: bytes of its files, users, the length of their names and passwords, of the names of people of
# other systems, roles of these, keys, sessions, those of one person, names that fail, passwords that wait to
# be hashed, and how many are at a time (each takes ARGON2_MEMORY_KIB_MAX at most, 19 MiB by default).
CONSOLE_FILE_BYTES_MAX: Final = 1024 * 1024
CONSOLE_USERS_MAX: Final = 1_000
CONSOLE_USER_NAME_CHARACTERS_MAX: Final = 64
CONSOLE_PASSWORD_CHARACTERS_MIN: Final = 10
CONSOLE_PASSWORD_BYTES_MAX: Final = 256
CONSOLE_FOREIGN_NAME_CHARACTERS_MAX: Final = 256
CONSOLE_FOREIGN_ROLES_MAX: Final = 1_000
CONSOLE_API_KEYS_MAX: Final = 1_000
CONSOLE_SESSIONS_MAX: Final = 1_000
CONSOLE_SESSIONS_OF_USER_MAX: Final = 16
CONSOLE_FAILING_USERS_MAX: Final = 4_096
CONSOLE_HASHES_WAITING_MAX: Final = 16
CONSOLE_HASHES_AT_ONCE: Final = 2

# Alarms of one process: those that are met at one time, those that have ended and are remembered, conditions,
# receivers and silences of the settings and of operators, the texts of these, the series whose growth is
# known, and what is read of a file of them and of a receiver's answer.
ALARMS_MAX: Final = 1_024
ALARMS_ENDED_MAX: Final = 1_000
ALARM_RULES_MAX: Final = 256
ALARM_RECEIVERS_MAX: Final = 16
ALARM_SILENCES_MAX: Final = 256
ALARM_TEXT_CHARACTERS_MAX: Final = 512
ALARM_SERIES_MAX: Final = 4_096
ALARM_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
ALARM_ANSWER_BYTES_MAX: Final = 64 * 1024
# What a look at the cluster asks for: groups and topics of dead letters, groups that are asked about one by
# one, sessions of devices that are watched, and brokers, registries and front ends that are missed when gone.
ALARM_GROUPS_MAX: Final = 4_096
ALARM_GROUPS_ASKED_MAX: Final = 64
ALARM_DEAD_LETTER_TOPICS_MAX: Final = 512
ALARM_SESSIONS_MAX: Final = 100_000
ALARM_KNOWN_MAX: Final = 1_024
