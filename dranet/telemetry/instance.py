"""What the driver's own process tells: its store, its duties, the time that it takes."""

from __future__ import annotations

from dranet.telemetry.declared import Group
from dranet.telemetry.recorder import LATENCY_BUCKETS, Recorder


class StoreMetrics:
    """What the store of prepared claims tells; gauges are read when scraped."""

    def __init__(self, r: Recorder) -> None:
        self.writable = r.gauge(
            "dranet_store_writable",
            "0 while the disk refuses records: no claim is prepared, all else goes on",
            Group.CLAIMS,
        )
        self.unwritten = r.gauge(
            "dranet_store_unwritten_records",
            "claims of which memory knows more than the disk, until it takes them",
            Group.CLAIMS,
        )
        self.quarantined = r.gauge(
            "dranet_store_quarantined_records",
            "records that [cannot be read](claims-on-the-node.md#records-that-cannot-be-read)",
            Group.CLAIMS,
        )
        self.write_seconds = r.histogram(
            "dranet_store_write_seconds",
            "transactions that the disk took, from the first word to the commit",
            Group.CLAIMS,
            buckets=LATENCY_BUCKETS,
        )
        self.size = r.gauge("dranet_store_size_bytes", "the store's file, with its log", Group.CLAIMS)


class HandoverMetrics:
    """What this instance is to others on the node, as in a rolling update."""

    def __init__(self, r: Recorder) -> None:
        self.state = r.gauge(
            "dranet_instance_state",
            "1 for the [state](updates.md#what-to-watch) of this instance",
            Group.DRIVER,
            {"state": "`waiting`, `on-duty`, `retired`, `aside`"},
        )
        self.instances = r.gauge("dranet_instances", "living instances on the node", Group.DRIVER)
        self.handovers = r.counter(
            "dranet_handovers_total",
            "duties taken over, and handed over",
            Group.DRIVER,
            {"side": "`taken`, `given`"},
        )


class ScrapeMetrics:
    """What answering a scrape takes."""

    def __init__(self, r: Recorder) -> None:
        self.read_seconds = r.gauge(
            "dranet_scrape_read_seconds",
            "how long the counters of devices took to read, for this answer or the one that it repeats",
            Group.DRIVER,
        )
        self.unread_pods = r.gauge(
            "dranet_scrape_unread_pods",
            "pods whose links could not be read in time, or at all; their series are absent meanwhile",
            Group.DRIVER,
        )
        self.stuck_reads = r.gauge(
            "dranet_scrape_stuck_reads",
            "places (a pod, an RDMA device, the node itself) that are left out because the kernel has not "
            "answered for them; the log names each",
            Group.DRIVER,
        )
        self.loop_lag = r.gauge(
            "dranet_event_loop_lag_seconds",
            "how long the driver's event loop took to hear of an event, measured when it is scraped",
            Group.DRIVER,
        )
        self.certificate_ok = r.gauge(
            "dranet_certificate_ok",
            "0 while the files of [the port's certificate](node-page.md#tls) are bad, and the one before "
            "stays in use; 1 also without TLS",
            Group.DRIVER,
        )
        setting = {"setting": "`metrics_tls_cert`"}
        self._not_before, self._not_after = (
            r.gauge(
                f"dranet_certificate_{bound}_timestamp_seconds",
                f"{words} the certificate in use is good (unix seconds); absent without TLS",
                Group.DRIVER,
                setting,
            )
            for bound, words in (("not_before", "from when on"), ("not_after", "until when"))
        )

    def show_validity(self, not_before: float, not_after: float) -> None:
        """Of the port's certificate."""
        self._not_before.labels("metrics_tls_cert").set(not_before)
        self._not_after.labels("metrics_tls_cert").set(not_after)
