"""The OpenMessaging Benchmark in front of iotmq and its peers: workloads, settings of drivers, results."""
