"""List everything that grows from peers' input without being one input, its bound, and the test of it.

Names in capitals are constants of `limits`, names like `mqtt.subscriptions_max` settings; what has
no number of its own says in words what bounds it. `tests/repo/test_limits.py` holds the table to the tree.
"""

from typing import Final, NamedTuple


class Bound(NamedTuple):
    """One structure: how many items it may have, how many bytes, and the test at that and past it."""

    structure: str
    items: str
    size_bytes: str
    test: str


DERIVED: Final[tuple[Bound, ...]] = (
    # Connections by the native protocol, of brokers and registries.
    Bound(
        "remoting.server: connections",
        "broker.connections_max, registry.connections_max, NATIVE_CONNECTIONS_MAX",
        "each its frame and its answers",
        "tests/unit/remoting/test_remoting_server.py::test_too_many_connections_are_refused",
    ),
    Bound(
        "remoting.server: connections that say nothing",
        "NATIVE_IDLE_S",
        "as those that do",
        "tests/unit/remoting/test_remoting_server.py::test_a_silent_connection_is_closed_after_the_idle_time",
    ),
    Bound(
        "remoting.channel: frames that have not arrived whole",
        "one of each connection",
        "UNFINISHED_FRAMES_BYTES_MAX",
        "tests/unit/remoting/test_remoting_server.py"
        "::test_unfinished_frames_of_many_peers_are_bounded_together",
    ),
    Bound(
        "remoting.channel: requests without an answer",
        "REQUESTS_IN_FLIGHT_MAX",
        "items x FRAME_BYTES_MAX",
        "tests/unit/remoting/test_remoting_server.py::test_too_many_unanswered_requests_are_refused",
    ),
    Bound(
        "remoting.channel: answers nobody reads",
        "as many as the bytes",
        "WRITE_BUFFER_BYTES_MAX",
        "tests/unit/remoting/test_remoting_server.py"
        "::test_a_peer_that_never_reads_is_closed_past_the_write_limit",
    ),
    Bound(
        "remoting.tls.accepting: handshakes under way",
        "TLS_HANDSHAKES_MAX, for TLS_HANDSHAKE_S",
        "items x TLS_HELLO_BYTES_MAX and the state of a handshake",
        "tests/unit/remoting/tls/test_remoting_tls.py::test_so_many_shake_hands_at_a_time",
    ),
    Bound(
        "remoting.tls.accepting: connections that say goodbye by TLS",
        "broker.connections_max, for TLS_SHUTDOWN_S",
        "as those that are open",
        "tests/unit/remoting/tls/test_remoting_tls.py"
        "::test_who_does_not_say_goodbye_counts_for_so_long_and_no_longer",
    ),
    Bound(
        "message.records.columns: bodies of one pull, inflated",
        "PULL_RECORDS_MAX",
        "COLUMN_BYTES_MAX",
        "tests/unit/message/test_columns.py::test_iter_columns_ends_before_bytes_max",
    ),
    Bound(
        "console.server.port: connections",
        "HTTP_CONNECTIONS_MAX",
        "each a request of http.header_bytes_max",
        "tests/unit/console/test_console_access.py::test_of_so_many_connections_the_quietest_makes_room",
    ),
    Bound(
        "console.server.connection: bodies of requests that are not answered",
        "HTTP_CONNECTIONS_MAX",
        "HTTP_BODIES_BYTES_MAX",
        "tests/unit/console/server/test_http_connection.py"
        "::test_bodies_of_all_connections_together_have_a_limit",
    ),
    Bound(
        "console.server.connection: answers that are not read",
        "HTTP_CONNECTIONS_MAX",
        "HTTP_UNREAD_BYTES_MAX",
        "tests/unit/console/server/test_http_connection.py"
        "::test_what_is_not_read_of_all_answers_together_has_a_limit",
    ),
    Bound(
        "console.api.replays: replays that are known, and go on",
        "HTTP_REPLAYS_KEPT_MAX, HTTP_REPLAYS_MAX",
        "the first x ids of 1,000 letters that are left, the others x two pieces of 1 MiB",
        "tests/unit/console/api/test_replays.py::test_so_many_are_known_and_those_that_go_on_are_among_them",
    ),
    Bound(
        "console.access.console_sessions: browsers in which somebody is signed in",
        "CONSOLE_SESSIONS_MAX, CONSOLE_SESSIONS_OF_USER_MAX",
        "items x 1 KiB",
        "tests/unit/console/access/test_console_sessions.py"
        "::test_past_the_limit_of_all_the_one_not_used_for_longest_ends",
    ),
    Bound(
        "console.access.passwords: names that failed",
        "CONSOLE_FAILING_USERS_MAX",
        "items x CONSOLE_USER_NAME_CHARACTERS_MAX",
        "tests/unit/console/access/test_passwords.py::test_names_that_failed_are_bounded",
    ),
    Bound(
        "console.access.passwords: passwords that wait to be hashed",
        "CONSOLE_HASHES_AT_ONCE, CONSOLE_HASHES_WAITING_MAX",
        "the first x ARGON2_MEMORY_KIB_MAX, the others x CONSOLE_PASSWORD_BYTES_MAX",
        "tests/unit/console/access/test_passwords.py::test_so_many_are_hashed_and_so_many_wait",
    ),
    Bound(
        "audit_log: records that wait to be stored",
        "AUDIT_RECORDS_MAX",
        "AUDIT_BYTES_MAX and a batch of AUDIT_BATCH_BYTES_MAX",
        "tests/unit/test_audit_log.py::test_so_many_records_wait_and_further_ones_are_counted",
    ),
    # A broker's tables.
    Bound(
        "broker.tables.topics: topics",
        "TOPICS_MAX",
        "items x TOPIC_BYTES_MAX",
        "tests/unit/broker/tables/test_topics.py::test_the_maximum_of_topics_is_kept_and_named",
    ),
    Bound(
        "broker.tables.deleted_topics: deleted topics with records",
        "DELETED_TOPICS_MAX",
        "items x TOPIC_BYTES_MAX",
        "tests/unit/broker/tables/test_deleted_topics.py::test_the_limit_holds_at_one_past_it",
    ),
    Bound(
        "broker.tables.subscription_groups: groups",
        "GROUPS_MAX",
        "items x GROUP_BYTES_MAX",
        "tests/unit/broker/tables/test_subscription_groups.py::test_the_maximum_of_groups_is_kept",
    ),
    Bound(
        "broker.members.groups: members of groups",
        "CLIENTS_PER_CONNECTION_MAX",
        "items x CLIENT_ID_BYTES_MAX",
        "tests/unit/broker/members/test_groups.py::test_one_connection_cannot_register_without_end",
    ),
    Bound(
        "broker.members.groups: subscriptions of a heartbeat",
        "HEARTBEAT_GROUPS_MAX, HEARTBEAT_SUBSCRIPTIONS_MAX of each, HEARTBEAT_SUBSCRIPTIONS_TOTAL_MAX of all",
        "HEARTBEAT_BYTES_MAX",
        "tests/unit/broker/members/test_groups.py"
        "::test_a_heartbeat_has_at_most_so_many_groups_and_subscriptions",
    ),
    Bound(
        "broker.tables.consumer_offsets: offsets of groups",
        "CONSUMER_OFFSET_PAIRS_MAX",
        "items x (TOPIC_BYTES_MAX + GROUP_BYTES_MAX)",
        "tests/unit/broker/tables/test_consumer_offsets.py::test_the_maximum_of_pairs_is_kept",
    ),
    Bound(
        "broker.tables.copied_table: changed keys that followers have not been sent",
        "2 x TOPICS_MAX, GROUPS_MAX, CONSUMER_OFFSET_PAIRS_MAX and QUEUE_LOCKS_MAX",
        "items x what each of them allows",
        "tests/unit/broker/tables/test_table_copies.py"
        "::test_past_the_maximum_of_changed_keys_the_table_is_copied",
    ),
    Bound(
        "broker.tables.table_copies: tables that are not copied to their end",
        "one of each table, of the maximum of its entries",
        "items x TABLE_PIECE_BYTES_MAX for a piece",
        "tests/unit/broker/tables/test_table_copies.py::test_a_table_has_no_more_entries_than_there_may_be",
    ),
    Bound(
        "broker.members.queue_locks: locked queues",
        "QUEUE_LOCKS_MAX",
        "items x (TOPIC_BYTES_MAX + GROUP_BYTES_MAX + CLIENT_ID_BYTES_MAX + LOCKED_BROKER_NAME_BYTES_MAX)",
        "tests/unit/broker/members/test_queue_locks.py::test_so_many_queues_may_be_locked_and_no_more",
    ),
    Bound(
        "broker.handlers.native.parked_pulls: pulls that wait for messages",
        "broker.held_pulls_max, HELD_PULLS_MAX",
        "items x one request's fields",
        "tests/unit/broker/handlers/native/test_parked_pulls.py::test_past_the_maximum_nothing_is_parked",
    ),
    Bound(
        "broker.pop.pop_queue: messages of a queue that a group holds, or that wait for their key",
        "POP_IN_FLIGHT_MAX",
        "as blocks; bits, times, heaps and changes are in them, or as many as they",
        "tests/unit/broker/pop/test_pops.py::test_so_many_messages_of_a_queue_may_be_in_flight_and_no_more",
    ),
    Bound(
        "broker.pop.blocks: blocks of 64 offsets of all groups, those with keys counted four times",
        "POP_BLOCKS_MAX",
        "items x 1.2 KB, 11 KB for four",
        "tests/unit/broker/pop/test_key_chains.py"
        "::test_messages_that_wait_for_their_key_count_and_so_do_their_blocks",
    ),
    Bound(
        "broker.pop.pops: queues that groups pop from, and when something of each is due",
        "POP_QUEUES_MAX",
        "items x (TOPIC_BYTES_MAX + GROUP_BYTES_MAX)",
        "tests/unit/broker/pop/test_pops.py::test_so_many_queues_may_be_popped_from",
    ),
    Bound(
        "broker.handlers.native.pop: pops and questions that wait",
        "broker.held_pulls_max, HELD_PULLS_MAX",
        "items x one request's fields",
        "tests/unit/broker/handlers/native/test_pop_handler.py"
        "::test_a_pop_that_has_no_room_to_wait_is_told_so",
    ),
    Bound(
        "broker.pop.attempts: attempts to pop that may be made again",
        "POP_ATTEMPTS_MAX",
        "items x (POP_ATTEMPT_ID_BYTES_MAX + TOPIC_BYTES_MAX + GROUP_BYTES_MAX and 32 offsets)",
        "tests/unit/broker/pop/test_attempts.py::test_so_many_attempts_are_remembered_the_last_ones",
    ),
    Bound(
        "broker.handlers.native.pop_acks: acknowledgements of one request",
        "POP_ACKS_MAX, POP_ACKED_MAX of all",
        "items x POP_ACK_BITS_BYTES_MAX",
        "tests/unit/broker/handlers/native/test_pop_handler.py"
        "::test_acknowledgements_in_one_request_have_their_limits",
    ),
    Bound(
        "broker.replies.cold_reads: reads that wait for the disk",
        "broker.cold_reads_max, COLD_READS_MAX",
        "one window of the log for each",
        "tests/unit/broker/replies/test_cold_reads.py::test_as_many_wait_as_may_and_one_more_is_told_so",
    ),
    Bound(
        "broker.handlers.native.pull: records of one answer",
        "PULL_RECORDS_MAX, PULL_RECORDS_DEFAULT_MAX",
        "PULL_BYTES_MAX, PULL_BYTES_DEFAULT_MAX",
        "tests/unit/broker/handlers/native/test_pull_handler.py::test_byte_limits",
    ),
    Bound(
        "store.queues.reads: entries a pull by filter looks at",
        "PULL_SCAN_ENTRIES_MIN, or 8 for each record asked for",
        "FILTER_WORK_BYTES_MAX",
        "tests/unit/store/queues/test_reads_filtered.py::test_a_read_looks_at_so_many_entries",
    ),
    Bound(
        "broker.filters.consumer_filters: filters of groups",
        "CONSUMER_FILTERS_MAX",
        "items x FILTER_EXPRESSION_BYTES_MAX",
        "tests/unit/broker/filters/test_consumer_filters.py::test_a_broker_keeps_so_many_filters",
    ),
    Bound(
        "broker.filters.tags: parsed expressions of tags",
        "CACHED_MAX of that module",
        "items x CACHED_CHARACTERS_MAX of that module",
        "tests/unit/broker/filters/test_consumer_filters.py"
        "::test_an_expression_of_tags_is_remembered_up_to_a_length",
    ),
    Bound(
        "broker.filters.consumer_filters: filters that wait for a turn of the loop",
        "_LATE_MAX of that module",
        "items x FILTER_EXPRESSION_BYTES_MAX",
        "tests/unit/broker/filters/test_consumer_filters.py"
        "::test_so_many_expressions_wait_for_a_turn_and_no_more",
    ),
    Bound(
        "broker.filters.consumer_filters: compiled filters",
        "FILTER_CACHE_MAX",
        "items x (FILTER_EXPRESSION_BYTES_MAX, and FILTER_NODES_MAX nodes)",
        "tests/unit/broker/filters/test_consumer_filters.py::test_so_many_compiled_filters_are_kept",
    ),
    Bound(
        "broker.access.accounts_file: addresses on the white list",
        "ACL_ADDRESSES_REMEMBERED_MAX",
        "items x an address",
        "tests/unit/broker/access/test_acl.py::test_the_white_list_remembers_so_many_addresses",
    ),
    Bound(
        "broker.statistics.statistics: counters by topic, queue and group",
        "STATISTICS_KEYS_MAX in each of six tables",
        "items x 1 KiB",
        "tests/unit/broker/statistics/test_broker_statistics.py"
        "::test_past_the_limit_the_keys_unused_for_longest_go",
    ),
    Bound(
        "history.tables: names of topics, groups and client ids",
        "STATISTICS_NAMES_MAX in each step of each table, four times as many in a file",
        "items x (STATISTICS_NAME_BYTES_MAX + 44); a block STATISTICS_BLOCK_BYTES_MAX",
        "tests/unit/history/test_tables.py"
        "::test_the_default_names_have_a_place_each_and_one_more_is_with_the_others",
    ),
    Bound(
        "history.sampler: series of metrics",
        "HISTORY_SERIES_MAX",
        "items x 10 KB",
        "tests/unit/history/test_sampler.py"
        "::test_there_are_so_many_series_and_one_that_is_gone_for_an_hour_makes_room",
    ),
    Bound(
        "mqtt_front.sessions.client_prefixes: prefixes of client ids",
        "CLIENT_PREFIXES_MAX",
        "items x 64 characters and their counts",
        "tests/unit/mqtt_front/sessions/test_client_prefixes.py::test_so_many_prefixes_have_a_place",
    ),
    Bound(
        "broker.transactions.transactions: transactions without an end",
        "broker.transactions_pending_max, TRANSACTIONS_PENDING_MAX",
        "items x (TOPIC_BYTES_MAX + GROUP_BYTES_MAX)",
        "tests/unit/broker/transactions/test_transactions.py::test_so_many_may_be_pending_and_no_more",
    ),
    Bound(
        "broker.transactions.transactions: ends that are remembered",
        "TRANSACTIONS_ENDED_REMEMBERED_MAX",
        "items x two numbers",
        "tests/unit/broker/transactions/test_transactions.py::test_only_so_many_ends_are_remembered",
    ),
    Bound(
        "broker.scheduled.timers: messages that wait for a time",
        "broker.timers_pending_max, TIMERS_PENDING_MAX",
        "on the disk",
        "tests/unit/broker/scheduled/test_timers.py"
        "::test_one_too_many_is_refused_with_a_code_that_clients_try_again_on",
    ),
    Bound(
        "broker.scheduled.scheduling: messages of devices that wait",
        "broker.timers_pending_max",
        "on the disk",
        "tests/unit/broker/scheduled/test_delayed_batches.py"
        "::test_messages_that_wait_at_their_limit_and_past_it",
    ),
    Bound(
        "broker.handlers.native.timers: timers of one answer",
        "TIMERS_LISTED_MAX",
        "8 MiB of records",
        "tests/unit/broker/scheduled/test_timers.py::test_a_page_of_a_list_has_a_largest_size",
    ),
    Bound(
        "broker.questions.replies: replies not yet taken",
        "REPLIES_IN_FLIGHT_MAX",
        "items x RECORD_BYTES_MAX",
        "tests/unit/broker/questions/test_reply_handler.py"
        "::test_so_many_replies_may_be_under_way_and_no_more",
    ),
    Bound(
        "broker.replies.client_relay: questions passed on to clients",
        "RELAYS_MAX",
        "items x one request's fields",
        "tests/integration/test_broker_views.py::test_only_so_many_questions_wait_for_clients",
    ),
    Bound(
        "broker.replies.client_relay: clients that one question is passed on to",
        "RELAYED_CLIENTS_MAX",
        "items x one answer",
        "tests/integration/test_broker_views.py::test_a_group_is_asked_with_so_many_clients_and_no_more",
    ),
    Bound(
        "broker.handlers.native.offset_moved: events of moved consumers",
        "OFFSET_MOVED_EVENTS_PER_S_MAX",
        "stored as messages",
        "tests/integration/test_broker_views.py::test_a_broken_consumer_makes_only_so_many_events_a_second",
    ),
    Bound(
        "broker.replies.sliced_reply: answers made in slices",
        "LONG_ANSWERS_MAX",
        "items x ANSWER_BODY_BYTES_MAX",
        "tests/unit/broker/replies/test_sliced_reply.py::test_only_so_many_are_worked_on_at_a_time",
    ),
    Bound(
        "broker.handlers.admin.queries: records found by key",
        "INDEX_QUERY_RECORDS_MAX",
        "QUERY_BYTES_MAX",
        "tests/integration/test_broker_views.py::test_what_is_found_is_limited_in_bytes_but_never_to_nothing",
    ),
    Bound(
        "store.projections.key_index.key_index: entries one query looks at",
        "INDEX_LOOKUP_ENTRIES_MAX, INDEX_CANDIDATES_MAX",
        "items x an entry of 20 bytes",
        "tests/unit/store/projections/key_index/test_key_index.py"
        "::test_query_looks_at_no_more_records_than_the_limit",
    ),
    Bound(
        "store.kv.kv_projection: changes not yet in the database",
        "4,096 keys",
        "32 MiB of log",
        "tests/unit/store/kv/test_kv_projection.py::test_pending_keys_are_bounded",
    ),
    Bound(
        "store.queues.cold_pages: windows of files that are read",
        "as many as the bytes",
        "a fixed budget of pages",
        "tests/unit/store/queues/test_cold_pages.py::test_pages_bound_is_kept_by_several_threads",
    ),
    Bound(
        "broker.registration.registration: changes that wait for a registry",
        "one of each kind of change",
        "REGISTRATION_BYTES_MAX",
        "tests/unit/broker/registration/test_registration.py"
        "::test_changes_that_wait_for_a_slow_registry_share_one_place",
    ),
    # A broker's side of MQTT.
    Bound(
        "broker.delivery.delivery: filters of a front end",
        "FILTERS_PER_CHANNEL_MAX",
        "items x MQTT_TOPIC_BYTES_MAX",
        "tests/unit/broker/handlers/mqtt/test_broker_gateway.py"
        "::test_filters_of_a_channel_at_their_limit_and_past_it",
    ),
    Bound(
        "broker.delivery.filter_marks: marks of filters",
        "FILTERS_PER_CHANNEL_MAX for each of MARKING_CHANNELS_MAX front ends",
        "some 17 for each",
        "tests/unit/broker/handlers/mqtt/test_broker_gateway.py"
        "::test_channels_with_marks_at_their_limit_and_past_it",
    ),
    Bound(
        "broker.delivery.delivery: records that wait to be matched",
        "DELIVERY_BACKLOG_ITEMS_MAX",
        "DELIVERY_BACKLOG_BYTES_MAX",
        "tests/unit/broker/delivery/test_delivery.py::test_past_what_may_wait_records_are_matched_at_once",
    ),
    Bound(
        "broker.delivery.delivery: calls that wait behind records",
        "DELIVERY_BACKLOG_ITEMS_MAX",
        "items x one request",
        "tests/unit/broker/delivery/test_delivery.py::test_calls_that_wait_at_their_limit_and_past_it",
    ),
    Bound(
        "broker.delivery.push_channel: matches handed over at once",
        "PUSH_BYTES_MAX / 4, and those of one record",
        "PUSH_BYTES_MAX, and one record's",
        "tests/unit/broker/delivery/test_delivery.py::"
        "test_records_that_match_very_many_filters_take_several_turns_and_small_pushes",
    ),
    Bound(
        "broker.handlers.mqtt.gateway: pushes a front end has not taken",
        "PUSHES_UNSENT_BYTES_MAX / the smallest push",
        "PUSHES_UNSENT_BYTES_MAX, and one push",
        "tests/unit/broker/handlers/mqtt/test_broker_gateway.py::"
        "test_a_front_end_that_does_not_take_its_pushes_loses_them_and_nobody_else",
    ),
    Bound(
        "mqtt_front.deliver.egress: records that wait to be written",
        "EGRESS_BACKLOG_BYTES_MAX / the smallest record",
        "EGRESS_BACKLOG_BYTES_MAX, and one push",
        "tests/unit/mqtt_front/deliver/test_egress.py"
        "::test_nothing_is_read_from_devices_while_much_waits_for_subscribers",
    ),
    Bound(
        "mqtt_front.sessions.filter_shapes: shapes of one session's filters",
        "MQTT_SHAPES_PER_SESSION_MAX",
        "items x MQTT_WILDCARD_LEVELS_MAX",
        "tests/unit/mqtt_front/test_mqtt_front.py::test_shapes_of_one_session_at_their_limit_and_past_it",
    ),
    Bound(
        "mqtt_front.sessions.filter_shapes: bytes of one session's filters",
        "mqtt.subscriptions_max",
        "MQTT_FILTER_BYTES_PER_SESSION_MAX",
        "tests/unit/mqtt_front/test_mqtt_front.py::test_bytes_of_filters_of_one_session_at_their_limit_and_past_it",
    ),
    Bound(
        "mqtt.topics.filters: topics whose filters are remembered",
        "65,536 topics",
        "MQTT_TOPIC_CACHE_BYTES_MAX",
        "tests/unit/mqtt/topics/test_filter_index.py::test_the_cache_takes_no_more_bytes_than_it_may",
    ),
    Bound(
        "mqtt.topics.filters: shapes of wildcard filters",
        "FILTER_SHAPES_MAX of kept sessions of a broker, and of clean ones of each front end",
        "items x MQTT_WILDCARD_LEVELS_MAX",
        "tests/unit/broker/sessions/test_sessions.py::test_shapes_of_filters_at_their_limit_and_past_it",
    ),
    Bound(
        "mqtt_front.sessions.filter_shapes: shapes of clean sessions' filters",
        "FILTER_SHAPES_MAX",
        "items x MQTT_WILDCARD_LEVELS_MAX",
        "tests/unit/mqtt_front/test_mqtt_front.py::test_shapes_of_filters_at_their_limit_and_past_it",
    ),
    Bound(
        "broker.handlers.mqtt.sessions: queues whose pushes were not sent",
        "MISSED_QUEUES_MAX",
        "items x one number",
        "tests/unit/broker/handlers/mqtt/test_session_handler.py"
        "::test_past_a_number_of_queues_all_count_as_missed",
    ),
    Bound(
        "broker.handlers.mqtt.sessions: sessions and queues of one request",
        "SESSIONS_PER_REQUEST_MAX, SESSION_QUEUES_MAX",
        "FRAME_BYTES_MAX",
        "tests/unit/broker/handlers/mqtt/test_session_handler.py::test_what_cannot_be_is_refused_and_named",
    ),
    Bound(
        "broker.handlers.mqtt.sessions: records of one read",
        "QUEUE_READ_RECORDS_MAX",
        "PULL_BYTES_MAX",
        "tests/unit/broker/handlers/mqtt/test_session_handler.py::test_a_read_has_bounds",
    ),
    Bound(
        "broker.delivery.retained_reads: look-ups that wait",
        "one of each connected device, REQUESTS_IN_FLIGHT_MAX of a front end in another process",
        "items x MQTT_TOPIC_BYTES_MAX",
        "tests/unit/mqtt_front/deliver/test_retained_egress.py"
        "::test_a_device_has_one_look_up_under_way_however_much_it_subscribes",
    ),
    Bound(
        "event_loop: actions that wait",
        "three of each session and front end, and as many cancelled ones",
        "items x one closure",
        "tests/unit/test_due_actions.py::test_cancelled_actions_take_no_more_room_than_the_others_and_a_few",
    ),
    Bound(
        "broker.session_store.log: changes of sessions in one record",
        "SESSION_NAMES_PER_CHANGE_MAX filters and messages in flight of a report",
        "SESSION_RECORD_BYTES_MAX",
        "tests/unit/broker/sessions/test_sessions.py"
        "::test_a_report_about_the_longest_filters_is_stored_whole",
    ),
    Bound(
        "broker.session_store.projection: sessions kept decoded",
        "RECENT_SESSIONS_MAX of that module",
        "RECENT_BYTES_MAX of that module, RECENT_SESSION_BYTES_MAX of one",
        "tests/unit/broker/session_store/test_session_projection.py"
        "::test_sessions_kept_decoded_at_their_limits_and_past_them",
    ),
    Bound(
        "broker.session_store.projection: cursors looked at in one turn",
        "SWEEP_PLACES of that module",
        "items x a cursor",
        "tests/unit/broker/session_store/test_session_projection.py"
        "::test_a_filter_of_very_many_sessions_is_looked_at_in_pieces",
    ),
    Bound(
        "broker.sessions.limits: messages of one session that wait",
        "broker.session_queue_messages_max",
        "broker.session_queue_bytes_max",
        "tests/unit/broker/sessions/test_session_limits.py::test_bytes_at_their_limit_and_past_it",
    ),
    Bound(
        "broker.handlers.mqtt.session_views: sessions of one answer",
        "SESSIONS_LISTED_MAX",
        "items x MQTT_CLIENT_ID_BYTES_MAX",
        "tests/integration/test_loop_turns.py::test_as_many_sessions_are_listed_as_may_be",
    ),
    Bound(
        "broker.handlers.mqtt.session_views: groups of one answer",
        "SHARES_LISTED_MAX",
        "items x MQTT_TOPIC_BYTES_MAX",
        "tests/unit/broker/shares/test_shares.py::test_no_answer_lists_more_groups_than_the_limit",
    ),
    Bound(
        "broker.sessions.wills: wills that wait",
        "one of each session",
        "WAITING_BYTES_MAX of that module, the rest is on the disk",
        "tests/unit/broker/sessions/test_sessions.py"
        "::test_wills_that_wait_at_their_limit_of_memory_and_past_it",
    ),
    Bound(
        "broker.sessions.exclusives: filters of one session alone",
        "broker.exclusive_subscriptions_max, EXCLUSIVE_SUBSCRIPTIONS_MAX",
        "items x MQTT_TOPIC_BYTES_MAX",
        "tests/unit/broker/sessions/test_exclusives.py::test_there_are_only_so_many",
    ),
    Bound(
        "broker.shares.shares: groups",
        "broker.shared_groups_max, SHARE_GROUPS_MAX",
        "items x (SHARE_NAME_BYTES_MAX + MQTT_TOPIC_BYTES_MAX)",
        "tests/unit/broker/shares/test_shares.py::test_groups_past_the_limit_are_refused",
    ),
    Bound(
        "broker.shares.shares: members of a group",
        "broker.shared_members_max, SHARE_MEMBERS_MAX",
        "items x MQTT_CLIENT_ID_BYTES_MAX",
        "tests/unit/broker/shares/test_shares.py::test_members_past_the_limit_are_refused",
    ),
    Bound(
        "broker.shares.share_group: messages read and not acknowledged",
        "broker.shared_in_flight_max, SHARE_IN_FLIGHT_MAX, SHARE_CREDIT_MAX of a member",
        "SHARE_CLIENT_BYTES_MAX of a client in all its groups",
        "tests/unit/broker/shares/test_shares.py"
        "::test_a_client_holds_no_more_bytes_than_the_limit_in_all_its_groups",
    ),
    Bound(
        "broker.delivery.retained: retained messages",
        "broker.retained_messages_max",
        "broker.retained_bytes_max",
        "tests/unit/broker/delivery/test_retained.py"
        "::test_past_the_limits_known_topics_go_on_and_new_ones_are_counted",
    ),
    Bound(
        "broker.delivery.retained: topics one turn looks at",
        "RETAINED_LOOK_BYTES of work for each",
        "RETAINED_TURN_WORK_BYTES_MAX",
        "tests/unit/broker/delivery/test_retained.py"
        "::test_a_page_ends_where_its_work_is_done_though_nothing_was_found",
    ),
    Bound(
        "broker.exactly_once.received_ids: packet ids of QoS 2 not released",
        "RECEIVED_IDS_MAX",
        "RECEIVED_IDS_BYTES_MAX",
        "tests/unit/broker/exactly_once/test_stored_once.py::test_packet_ids_at_their_limit_and_past_it",
    ),
    Bound(
        "broker.exactly_once.batch_numbers: producers whose last batch is remembered",
        "BATCH_PRODUCERS_MAX",
        "BATCH_PRODUCERS_BYTES_MAX",
        "tests/unit/broker/exactly_once/test_batch_numbers.py::test_producers_at_their_limit_and_past_it",
    ),
    Bound(
        "mqtt_front.routing.topic_rewrite: a pattern once it is compiled",
        "MQTT_REWRITE_PATTERN_CHARACTERS_MAX",
        "MQTT_REWRITE_PROGRAM_BYTES_MAX",
        "tests/unit/mqtt_front/routing/test_topic_rewrite.py::test_a_pattern_has_a_size_in_memory",
    ),
    # A front end and its devices.
    Bound(
        "mqtt_front.server: connections of devices",
        "mqtt.connections_max, MQTT_CONNECTIONS_MAX",
        "items x (mqtt.packet_bytes_max + mqtt.queued_bytes_max)",
        "tests/unit/mqtt_front/test_mqtt_front.py::test_connections_at_their_limit_and_past_it",
    ),
    Bound(
        "mqtt_front.connection.deadlines: devices that have not said CONNECT",
        "mqtt.connections_max, for MQTT_CONNECT_TIMEOUT_S",
        "MQTT_UNDECIDED_BYTES_MAX",
        "tests/unit/mqtt_front/test_mqtt_front.py"
        "::test_a_connection_without_connect_has_its_time_and_no_more",
    ),
    Bound(
        "mqtt_front.access.undecided: what CONNECTs hold",
        "as many as the bytes",
        "MQTT_UNDECIDED_BYTES_MAX",
        "tests/unit/mqtt_front/access/test_undecided.py::test_there_is_room_to_the_byte",
    ),
    Bound(
        "mqtt_front.connection.device: parts of CONNECTs, and what came behind them",
        "as many as the bytes",
        "MQTT_CONNECT_BYTES_MAX of one packet, MQTT_UNOPENED_BYTES_MAX of all connections",
        "tests/unit/mqtt_front/test_mqtt_front.py"
        "::test_what_is_held_for_devices_that_are_not_connected_is_bounded",
    ),
    Bound(
        "mqtt_front.listen.handshakes: handshakes under way and waiting",
        "TLS_HANDSHAKES_MAX, TLS_HANDSHAKES_PER_TURN",
        "items x TLS_HELLO_BYTES_MAX",
        "tests/unit/mqtt_front/listen/test_mqtt_tls.py"
        "::test_a_flood_of_handshakes_is_bounded_and_harms_nobody",
    ),
    Bound(
        "mqtt_front.listen.admission: connections that wait to be refused",
        "a fixed number past mqtt.connections_max",
        "MQTT_UNDECIDED_BYTES_MAX",
        "tests/unit/mqtt_front/sessions/test_drain.py::test_only_so_many_connections_wait_to_be_refused",
    ),
    Bound(
        "credentials.failed_attempts: addresses that failed",
        "MQTT_FAILING_ADDRESSES_MAX",
        "items x an address",
        "tests/unit/credentials/test_failed_attempts.py"
        "::test_addresses_are_bounded_and_the_oldest_goes",
    ),
    Bound(
        "credentials.failed_attempts: users who were right",
        "MQTT_PROVEN_USERS_MAX",
        "items x 150 bytes",
        "tests/unit/credentials/test_failed_attempts.py"
        "::test_users_who_were_right_are_bounded_and_the_oldest_goes",
    ),
    Bound(
        "credentials.pace: devices that wait for their turn at a link",
        "a setting of the link, of devices that are not read meanwhile",
        "MQTT_UNDECIDED_BYTES_MAX of all of them",
        "tests/unit/mqtt_front/access/test_mqtt_authentication.py"
        "::test_what_waits_for_a_thread_is_bounded_and_not_read",
    ),
    Bound(
        "mqtt_front.access.answers: answers of a link that are remembered",
        "a setting of the link",
        "MQTT_ANSWERS_BYTES_MAX of each kind",
        "tests/unit/mqtt_front/access/test_answers.py::test_bytes_at_their_maximum_and_past_it",
    ),
    Bound(
        "credentials.token_keys: keys of an issuer",
        "MQTT_TOKEN_KEYS_MAX of one set",
        "MQTT_TOKEN_KEYS_BYTES_MAX of one set or file",
        "tests/unit/credentials/test_token_keys.py::test_a_set_at_its_maximum_and_past_it",
    ),
    Bound(
        "mqtt_front.access.links.http: what a service answers",
        "MQTT_IDENTITY_NAMES_MAX names of each kind",
        "MQTT_SERVICE_ANSWER_BYTES_MAX",
        "tests/unit/mqtt_front/access/links/test_http_link.py::test_an_answer_at_its_maximum_and_past_it",
    ),
    Bound(
        "mqtt_front.access.users_file: users",
        "MQTT_USERS_MAX",
        "MQTT_USERS_FILE_BYTES_MAX",
        "tests/unit/mqtt_front/access/test_users_file.py::test_sizes",
    ),
    Bound(
        "mqtt_front.permissions.rights: targets whose rights a connection knows",
        "64 of 32 bytes, the last ones",
        "items",
        "tests/unit/mqtt_front/permissions/test_rights.py"
        "::test_what_is_remembered_is_bounded_and_a_device_with_few_topics_needs_little",
    ),
    Bound(
        "mqtt_front.permissions.rule_set: rules that devices share",
        "MQTT_PERMISSION_SETS_MAX",
        "MQTT_PERMISSIONS_FILE_BYTES_MAX",
        "tests/unit/mqtt_front/permissions/test_rules_file.py"
        "::test_devices_with_the_same_rules_share_what_is_known_of_them_and_that_is_bounded",
    ),
    Bound(
        "mqtt_front.permissions.refusals: rules that refuse",
        "MQTT_REFUSING_RULES_MAX",
        "items x 64 characters of a name",
        "tests/unit/mqtt_front/permissions/test_refusals.py"
        "::test_so_many_rules_are_counted_each_and_all_others_as_one",
    ),
    Bound(
        "mqtt_front.permissions.containment: steps of a comparison",
        "MQTT_PERMISSION_WORK_MAX",
        "items x rules",
        "tests/unit/mqtt_front/permissions/test_containment.py"
        "::test_the_work_of_a_decision_is_limited_and_past_it_the_filter_is_refused_and_that_is_said",
    ),
    Bound(
        "mqtt_front.permissions.questions: questions under way",
        "MQTT_PERMISSION_QUESTIONS_MAX, for mqtt.permissions.answer_timeout_s",
        "items x MQTT_TOPIC_BYTES_MAX",
        "tests/unit/mqtt_front/permissions/test_questions.py"
        "::test_so_many_questions_are_under_way_at_one_time",
    ),
    Bound(
        "mqtt_front.permissions.questions: answers of a connection",
        "MQTT_PERMISSION_ANSWERS_MAX",
        "items x MQTT_TOPIC_BYTES_MAX",
        "tests/unit/mqtt_front/permissions/test_questions.py::test_so_many_answers_are_remembered",
    ),
    Bound(
        "mqtt_front.publish.guard: messages that wait for an answer",
        "as many as the bytes",
        "MQTT_PERMISSION_WAITING_BYTES_MAX",
        "tests/unit/mqtt_front/permissions/test_questions.py::test_a_message_past_what_may_wait_is_refused",
    ),
    Bound(
        "mqtt_front.permissions.filter_decisions: filters that wait for a turn of the loop",
        "MQTT_SUBSCRIPTIONS_PER_PACKET_MAX, or MQTT_SUBSCRIPTIONS_PER_SESSION_MAX of a session that is back",
        "one packet, MQTT_FILTER_BYTES_PER_SESSION_MAX",
        "tests/unit/mqtt_front/permissions/test_filter_decisions.py"
        "::test_a_subscribe_with_as_many_filters_as_fit_is_decided_in_turns_and_in_order",
    ),
    Bound(
        "mqtt_front.permissions.identity_rules: rules of an identity",
        "MQTT_IDENTITY_RULES_MAX",
        "as the token has that they come in, or the answer: MQTT_SERVICE_ANSWER_BYTES_MAX",
        "tests/unit/mqtt_front/permissions/test_identity_rules.py::test_an_identity_has_at_most_so_many",
    ),
    Bound(
        "mqtt_front.sessions.left_wills: wills that brokers keep for a while",
        "MQTT_LEFT_WILLS_MAX",
        "items x (MQTT_TOPIC_BYTES_MAX + MQTT_CLIENT_ID_BYTES_MAX)",
        "tests/unit/mqtt_front/sessions/test_left_wills.py::test_so_many_are_looked_at_and_the_oldest_goes",
    ),
    Bound(
        "front_port.session_link: wills to be dropped by a broker that is away",
        "MQTT_LEFT_WILLS_MAX",
        "items x MQTT_CLIENT_ID_BYTES_MAX",
        "tests/unit/mqtt_front/sessions/test_left_wills.py::test_a_will_is_dropped_once",
    ),
    # Limits, bans and hooks of a front end, and bridges.
    Bound(
        "mqtt_front.limiting.limiter: clients, users and addresses without a connection",
        "MQTT_IDLE_SCOPES_MAX of each kind",
        "items x (MQTT_CLIENT_ID_BYTES_MAX and 400 bytes)",
        "tests/unit/mqtt_front/limiting/test_limiter.py"
        "::test_those_without_a_connection_are_remembered_within_a_maximum",
    ),
    Bound(
        "mqtt_front.limiting.limiter: those with connections",
        "mqtt.connections_max of each kind",
        "items x (MQTT_CLIENT_ID_BYTES_MAX and 400 bytes)",
        "tests/unit/mqtt_front/test_mqtt_front.py::test_connections_at_their_limit_and_past_it",
    ),
    Bound(
        "mqtt_front.limiting.buckets: devices that wait for tokens",
        "one place of each connection and way",
        "items x one pointer",
        "tests/unit/mqtt_front/limiting/test_buckets.py::test_who_has_gone_is_passed_over",
    ),
    Bound(
        "credentials.window_counts: addresses and client ids that connect",
        "MQTT_FLAPPING_COUNTED_MAX of each",
        "items x MQTT_CLIENT_ID_BYTES_MAX",
        "tests/unit/mqtt_front/limiting/test_flapping.py::test_so_many_are_counted",
    ),
    Bound(
        "mqtt_front.limiting.bans: names and addresses",
        "MQTT_BANS_MAX together",
        "items x (MQTT_CLIENT_ID_BYTES_MAX + MQTT_BAN_REASON_CHARACTERS_MAX)",
        "tests/unit/mqtt_front/limiting/test_bans.py::test_exact_bans_have_a_maximum_together",
    ),
    Bound(
        "mqtt_front.limiting.bans: networks",
        "MQTT_BANNED_NETWORKS_MAX",
        "items x (an address + MQTT_BAN_REASON_CHARACTERS_MAX)",
        "tests/unit/mqtt_front/limiting/test_bans.py::test_networks_have_a_maximum",
    ),
    Bound(
        "mqtt_front.limiting.bans: patterns",
        "MQTT_BANNED_PATTERNS_MAX",
        "items x (MQTT_BAN_PATTERN_CHARACTERS_MAX and the program that RE2 makes of them)",
        "tests/unit/mqtt_front/limiting/test_bans.py::test_patterns_have_a_maximum",
    ),
    Bound(
        "mqtt_front.limiting.shared_bans: bans that brokers are still to be told",
        "MQTT_BANS_MAX, for 30 s",
        "items x (MQTT_CLIENT_ID_BYTES_MAX + MQTT_BAN_REASON_CHARACTERS_MAX)",
        "tests/unit/mqtt_front/limiting/test_shared_bans.py::test_a_ban_past_what_may_be_is_nowhere",
    ),
    Bound(
        "mqtt_front.connection.device: packets that have not come whole",
        "mqtt.connections_max",
        "MQTT_UNFINISHED_BYTES_MAX of large ones, 64 KiB of each other one",
        "tests/unit/mqtt_front/limiting/test_limited_devices.py"
        "::test_large_packets_that_are_not_whole_have_a_limit_together",
    ),
    Bound(
        "mqtt_front.hooks.hook_calls: decisions that are waited for",
        "HOOK_QUESTIONS_MAX",
        "items x one SUBSCRIBE, and HOOK_HELD_BYTES_MAX of messages",
        "tests/unit/mqtt_front/hooks/test_hooks.py::test_questions_that_wait_have_a_maximum",
    ),
    Bound(
        "mqtt_front.hooks.hook_thread: events that programs are still to be told",
        "HOOK_EVENTS_WAITING_MAX",
        "HOOK_EVENTS_BYTES_MAX",
        "tests/unit/mqtt_front/hooks/test_hooks.py"
        "::test_messages_that_programs_are_still_to_be_told_have_a_maximum_of_bytes",
    ),
    Bound(
        "mqtt_front.hooks.hooked_sink: messages that wait for an answer",
        "as many as the bytes",
        "HOOK_HELD_BYTES_MAX, and one turn's",
        "tests/unit/mqtt_front/hooks/test_hooks.py::test_messages_that_are_held_stop_reading",
    ),
    Bound(
        "mqtt_front.sessions.bridge_clients: states of bridges",
        "MQTT_BRIDGE_STATES_MAX",
        "items x MQTT_TOPIC_BYTES_MAX",
        "tests/unit/mqtt_front/sessions/test_bridge_clients.py"
        "::test_states_have_a_maximum_and_those_that_are_gone_go_first",
    ),
    Bound(
        "mqtt_front.plugins.host: questions without an answer",
        "waiting_max of each of MQTT_PLUGINS_MAX plug-ins",
        "each a CONNECT or a topic",
        "tests/unit/mqtt_front/plugins/test_plugin_host.py::test_questions_wait_up_to_their_maximum",
    ),
    Bound(
        "mqtt_front.plugins.host: events that wait",
        "MQTT_PLUGIN_EVENTS_MAX",
        "each a filter and a client id",
        "tests/unit/mqtt_front/plugins/test_plugin_host.py::test_events_wait_up_to_their_maximum",
    ),
    Bound(
        "mqtt_front.plugins.front_plugins: messages that wait to be published",
        "as bytes allow",
        "MQTT_PLUGIN_MESSAGES_BYTES_MAX",
        "tests/unit/mqtt_front/plugins/test_front_plugins.py::test_messages_wait_up_to_their_maximum",
    ),
    Bound(
        "mqtt_front.plugins.sessions: devices that are shown to plug-ins",
        "mqtt.connections_max",
        "each a will and, for one plug-in, a password",
        "tests/unit/mqtt_front/test_mqtt_front.py::test_connections_at_their_limit_and_past_it",
    ),
    Bound(
        "mqtt_front.plugins.topic_answers: answers about topics",
        "as bytes allow",
        "MQTT_PLUGIN_ANSWERS_BYTES_MAX",
        "tests/unit/mqtt_front/plugins/test_topic_answers.py::test_the_oldest_answers_go_when_there_is_no_room",
    ),
    Bound(
        "mqtt_front.sessions.subscriptions: filters of one session",
        "mqtt.subscriptions_max, MQTT_SUBSCRIPTIONS_PER_SESSION_MAX",
        "MQTT_FILTER_BYTES_PER_SESSION_MAX",
        "tests/unit/mqtt_front/test_mqtt_front.py::test_subscriptions_at_their_limit_and_past_it",
    ),
    Bound(
        "mqtt_front.sessions.subscriptions: SUBSCRIBEs without an answer",
        "mqtt.subscriptions_max in all of them",
        "items x MQTT_TOPIC_BYTES_MAX",
        "tests/integration/test_mqtt_order.py::test_many_subscribes_at_once_get_no_more_than_a_session_may_have",
    ),
    Bound(
        "mqtt_front.connection.device: what waits behind a SUBSCRIBE",
        "for MQTT_ANSWER_TIMEOUT_S",
        "one read, the rest is the kernel's",
        "tests/unit/mqtt_front/test_mqtt_front.py::test_what_waits_behind_a_subscribe_is_left_in_the_kernel",
    ),
    Bound(
        "mqtt_front.deliver.sys_topics: subscribers of $SYS",
        "sessions that are connected",
        "items x their filters",
        "tests/unit/mqtt_front/test_mqtt_front.py"
        "::test_who_subscribes_what_the_server_says_of_itself_and_goes_is_forgotten",
    ),
    Bound(
        "mqtt_front.publish.ingress: messages that wait for brokers",
        "as many as the bytes",
        "mqtt.pending_bytes_max",
        "tests/unit/mqtt_front/publish/test_ingress.py"
        "::test_publishers_are_not_read_while_too_much_waits_and_are_when_half_of_it_is_gone",
    ),
    Bound(
        "mqtt_front.publish.ingress: packet ids whose release waits for brokers",
        "as many as the bytes",
        "mqtt.pending_bytes_max, together with messages",
        "tests/unit/mqtt_front/publish/test_ingress.py"
        "::test_releases_that_are_not_answered_stop_the_reading_from_devices",
    ),
    Bound(
        "mqtt_front.publish.targets: topics whose queue is remembered",
        "65,536 topics",
        "MQTT_TOPIC_CACHE_BYTES_MAX",
        "tests/unit/mqtt_front/publish/test_ingress.py::test_more_topics_than_the_cache_holds",
    ),
    Bound(
        "mqtt_front.publish.targets: what routes ask of the messages of these topics",
        "with the topics",
        "MQTT_TOPIC_CACHE_BYTES_MAX, together with them",
        "tests/unit/mqtt_front/publish/test_ingress_routes.py"
        "::test_more_topics_with_questions_than_the_cache_holds",
    ),
    Bound(
        "mqtt_front.routing.route_fields: a payload that is read as JSON",
        "one, for the time of its message",
        "mqtt.json_bytes_max",
        "tests/unit/mqtt_front/routing/test_route_fields.py::test_a_payload_that_is_read_has_a_size",
    ),
    Bound(
        "mqtt.topics.topic_cache: topics of one cache",
        "the maximum it was made with",
        "MQTT_TOPIC_CACHE_BYTES_MAX",
        "tests/unit/mqtt/topics/test_topic_cache.py::test_full_by_bytes_at_their_maximum_and_not_one_below",
    ),
    Bound(
        "mqtt.server.connection: messages from a device without an answer",
        "mqtt.receive_max, MQTT_RECEIVE_MAX",
        "items x a packet id",
        "tests/integration/test_mqtt_exhaustion.py::test_more_without_an_answer_than_the_device_was_told",
    ),
    Bound(
        "mqtt.server.connection: packet ids of QoS 2",
        "65,535 packet ids",
        "items x two bytes",
        "tests/integration/test_mqtt_exhaustion.py::test_every_packet_id_between_publish_and_pubrel",
    ),
    Bound(
        "mqtt.server.outbound_in_flight: messages to a device without an answer",
        "mqtt.in_flight_max, MQTT_IN_FLIGHT_MAX",
        "items x a slot",
        "tests/unit/mqtt/server/test_mqtt_connection.py"
        "::test_delivery_of_qos_1_keeps_to_the_window_and_goes_on_in_order",
    ),
    Bound(
        "mqtt.server.outbound: messages a device does not take",
        "mqtt.queued_messages_max",
        "mqtt.queued_bytes_max, MQTT_QUEUED_BYTES_MAX",
        "tests/unit/mqtt/server/test_mqtt_connection.py"
        "::test_what_waits_for_a_subscriber_at_its_limit_of_bytes_and_past_it",
    ),
    Bound(
        "mqtt.topics.topic_aliases: aliases of a connection, each way",
        "MQTT_TOPIC_ALIASES_MAX",
        "items x MQTT_TOPIC_BYTES_MAX",
        "tests/integration/test_mqtt_exhaustion.py::test_all_aliases_there_are_with_the_longest_topics_and_one_more",
    ),
    Bound(
        "mqtt_front.sessions.flight_ring: messages of a kept session in flight",
        "MQTT_FLIGHTS_MAX",
        "items x 24 bytes",
        "tests/integration/test_durable_sessions.py::test_a_device_gets_so_far_ahead_of_one_acknowledgement_that_does_not_come",
    ),
    Bound(
        "mqtt_front.sessions.reports: sessions that moved",
        "sessions that are connected, 64 of them in one turn, 256 of those that wait for it",
        "items x SESSION_RECORD_BYTES_MAX",
        "tests/integration/test_durable_sessions.py::test_the_progress_of_many_sessions_is_told_over_several_turns",
    ),
    Bound(
        "mqtt_front.deliver.retained_egress: retained messages on their way",
        "filters of one session",
        "one page of records",
        "tests/integration/test_durable_sessions.py::test_a_wide_filter_over_retained_messages_waits_for_a_slow_device",
    ),
    Bound(
        "mqtt_front.sessions.shared: messages held for members",
        "SHARE_CREDIT_MAX of each",
        "SHARE_CLIENT_BYTES_MAX of a device and broker, one copy for all who wait",
        "tests/unit/mqtt_front/sessions/test_shared_egress.py"
        "::test_a_message_that_many_memberships_wait_for_is_there_once",
    ),
    Bound(
        "mqtt_front.sessions.shared_subscriptions: groups of one session",
        "MQTT_SHARES_PER_SESSION_MAX",
        "items x (SHARE_NAME_BYTES_MAX + MQTT_TOPIC_BYTES_MAX)",
        "tests/integration/test_shared_subscriptions.py::test_a_session_takes_part_in_as_many_groups_as_it_may",
    ),
    Bound(
        "mqtt_front.listen.websocket: pongs nobody reads",
        "MQTT_WEBSOCKET_PONGS_PER_READ_MAX",
        "items x 125 bytes",
        "tests/unit/mqtt_front/listen/test_websocket.py"
        "::test_a_peer_that_never_reads_fills_no_memory_with_pongs",
    ),
    Bound(
        "mqtt_front.sessions.drain: devices sent elsewhere",
        "DRAINED_PER_SECOND_MAX in a second",
        "items x one packet",
        "tests/unit/mqtt_front/sessions/test_drain.py::test_devices_go_some_at_a_time",
    ),
    # A registry.
    Bound(
        "registry.routes: brokers and their topics",
        "BROKERS_MAX, REGISTRY_TOPICS_MAX",
        "items x REGISTRY_NAME_BYTES_MAX, and TOPIC_BYTES_MAX",
        "tests/unit/registry/test_route_table.py"
        "::test_a_full_table_refuses_one_more_topic_and_changes_nothing",
    ),
    Bound(
        "registry.server: lists of topics that wait",
        "256",
        "items x one request",
        "tests/unit/registry/test_registry.py::test_so_many_lists_of_topics_wait_and_no_more",
    ),
    Bound(
        "registry.routes: brokers that have left",
        "BROKERS_MAX, REGISTRY_TOPICS_MAX",
        "as those that are there",
        "tests/unit/registry/test_route_table.py::test_so_many_brokers_and_topics_are_remembered_and_no_more",
    ),
    Bound(
        "registry.watches: clients that wait for another master",
        "MASTER_WATCHERS_MAX, one of each connection",
        "items x one request",
        "tests/unit/registry/test_master_watches.py::test_so_many_wait_and_no_more",
    ),
    Bound(
        "registry.server: registrations that wait to be decoded",
        "REGISTRATIONS_WAITING_MAX",
        "REGISTRATIONS_WAITING_BYTES_MAX",
        "tests/unit/registry/test_registry.py::test_so_many_registrations_wait_and_no_more",
    ),
    Bound(
        "registry.kv: settings",
        "as many as the bytes",
        "KV_BYTES_MAX",
        "tests/unit/registry/test_registry_kv.py::test_all_values_together_have_a_maximum",
    ),
    # Clients of ours, and other processes of the gateway.
    Bound(
        "client.transport.registries: routes",
        "ROUTES_KNOWN_MAX",
        "items x one route",
        "tests/unit/client/transport/test_known_routes.py"
        "::test_of_too_many_the_one_known_longest_goes_and_is_asked_for_again",
    ),
    Bound(
        "client.transport.masters: broker names in use",
        "BROKERS_MAX",
        "items x one name and address",
        "tests/unit/client/transport/test_masters.py::test_so_many_names_are_followed_and_no_more",
    ),
    Bound(
        "client.transport.connections: addresses",
        "ADDRESSES_KNOWN_MAX",
        "items x one address",
        "tests/unit/client/transport/test_client_connections.py"
        "::test_of_too_many_addresses_the_one_known_longest_without_a_connection_is_forgotten",
    ),
    Bound(
        "client.transport.broker_health: brokers that failed or are slow",
        "BROKERS_MAX",
        "items x one name",
        "tests/unit/client/transport/test_broker_health.py::test_so_many_brokers_are_remembered_and_no_more",
    ),
    Bound(
        "client.sending.transactions: questions under way",
        "TRANSACTION_CHECKS_IN_FLIGHT_MAX",
        "items x RECORD_BYTES_MAX",
        "tests/integration/test_client_transactions.py::test_questions_past_the_maximum_are_dropped",
    ),
    Bound(
        "client.consuming.pushing.queue_reader: messages that were read and not taken",
        "a setting of the consumer",
        "a setting of the consumer, and COLUMN_BYTES_MAX of one decode",
        "tests/unit/client/consuming/pushing/test_client_push_consumer.py"
        "::test_pulling_pauses_at_the_maximum_of_cached_bytes_but_no_queue_starves",
    ),
    Bound(
        "client.sending.send_room: messages under way",
        "a setting of the producer",
        "a setting of the producer",
        "tests/unit/client/sending/test_client_producer.py::test_room_for_bytes_is_limited_too",
    ),
    Bound(
        "front_port.gateway: answers of devices under way",
        "REPLIES_IN_FLIGHT_MAX",
        "items x RECORD_BYTES_MAX",
        "tests/unit/front_port/test_client_gateway.py"
        "::test_answers_of_devices_under_way_at_their_limit_and_past_it",
    ),
    Bound(
        "mqtt_client.unread: messages nobody takes",
        "MQTT_CLIENT_RECEIVE_MAX without an answer",
        "MQTT_CLIENT_UNREAD_BYTES_MAX",
        "tests/unit/mqtt_client/test_mqtt_client_limits.py"
        "::test_a_connection_is_read_until_so_much_is_unread",
    ),
    Bound(
        "mqtt.client.session: messages in flight to a server",
        "MQTT_CLIENT_IN_FLIGHT_MAX, MQTT_CLIENT_IN_FLIGHT_UNTOLD_MAX",
        "items x MQTT_CLIENT_PACKET_BYTES_MAX",
        "tests/unit/mqtt_client/test_mqtt_client_limits.py::test_one_message_more_than_the_window_waits",
    ),
    Bound(
        "workers.channel: what a worker says",
        "one piece at a time",
        "WORKER_FRAME_BYTES_MAX",
        "tests/unit/workers/test_mqtt_workers.py::test_a_frame_at_the_limit_and_past_it",
    ),
    # Telemetry.
    Bound(
        "telemetry.tracing: spans that wait to be exported",
        "SPANS_WAITING_MAX",
        "items x some 1 KiB: names of clients and topics are cut",
        "tests/unit/telemetry/test_tracing.py::test_so_many_spans_wait_and_further_ones_are_counted",
    ),
    Bound(
        "telemetry.tracing: spans of one message",
        "SPANS_OF_A_MESSAGE_MAX",
        "as above",
        "tests/integration/test_telemetry.py::test_the_first_deliveries_of_a_message_are_spans",
    ),
    Bound(
        "broker.topic_changes.group_lag: pairs of group and topic",
        "LAG_PAIRS_MAX, LAG_QUEUES_MAX",
        "two names each",
        "tests/unit/broker/topic_changes/test_group_lag.py::test_past_the_maximum_pairs_are_counted_only",
    ),
)
