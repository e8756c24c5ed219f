"""Keep the replication state of a broker name in etcd or Kubernetes: one value, replaced by compare-and-set.

Begin with `port`, which says what replication asks for; `opening` makes a store from its settings.
"""
