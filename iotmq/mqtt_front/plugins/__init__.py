"""Host plug-ins that were written for amqtt, unmodified.

`loader` makes a class and its options of the settings, `host` runs it in threads of its own, `known_classes`
has what is to be known of amqtt's own classes, `guards` keeps questions from them that they answer wrongly.
`amqtt_link` is the link of the authentication chain, `topic_questions` answers for topics. `plugins` puts all
together, and `front_plugins` connects it with a front end.
"""
