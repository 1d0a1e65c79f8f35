"""Alerts about the driver itself, and about its peers."""

from __future__ import annotations

from tools.manifests.monitoring import commands as c
from tools.manifests.monitoring.recordings import CLUSTER, JOB
from tools.manifests.monitoring.rule import Alert, Severity

MEMORY_BYTES = 256 * 2**20
"""The idle driver has some 60 MB, a busy one a few more."""

_NOT_BEFORE, _NOT_AFTER = (
    f"dranet_certificate_{bound}_timestamp_seconds" for bound in ("not_before", "not_after")
)

DRIVER_ALERTS = (
    Alert(
        "DranetAbsent",
        Severity.WARNING,
        "15m",
        f"absent(up{{{JOB}}})",
        "Prometheus finds no dranet driver on any node",
        "No driver is scraped: it is not installed, no pod of it runs, or Prometheus does not find the pods. "
        "Pods that run keep their NICs; if no driver runs, new ones wait. Where there is no node to have one "
        "(a pool that was scaled to nothing) all is well.",
        c.PODS,
        f"No pods: `{c.DAEMONSETS}` says why. Pods that run: the PodMonitor "
        "lacks the labels that your Prometheus selects by, or the port is closed to it.",
        ("monitoring.md", "install.md"),
    ),
    Alert(
        "DranetManyNodesDown",
        Severity.CRITICAL,
        "10m",
        f"(count by ({CLUSTER}) (up{{{JOB}}} == 0) >= 3) > 0.1 * count by ({CLUSTER}) (up{{{JOB}}})",
        "The dranet driver does not answer on {{ $value }} nodes",
        "On more than a tenth of the nodes, and on three at least, no driver answers. New pods with NICs "
        "wait there; pods that run keep theirs. So many at once is an update, a setting or a certificate.",
        c.PODS,
        "Pods that crash: their last words (`kubectl logs --previous`). All began with an update: "
        f"`{c.UNDO}`. Pods that are ready: TLS, authentication "
        "or a NetworkPolicy keeps Prometheus out.",
        ("updates.md",),
    ),
    Alert(
        "DranetDown",
        Severity.WARNING,
        "10m",
        f"up{{{JOB}}} == 0",
        "The dranet driver on {{ $labels.node }} does not answer",
        "New pods with NICs wait on this node; pods that run keep theirs.",
        c.PODS_OF_NODE,
        "`CrashLoopBackOff`: `kubectl logs --previous` has the last words. Running and ready: look whether "
        "the port answers on the node (`curl localhost:9177/healthz`), and at TLS and authentication.",
        ("troubleshooting.md#while-no-driver-runs", "updates.md#how-an-instance-ends-and-how-long-it-takes"),
    ),
    Alert(
        "DranetCrashLooping",
        Severity.WARNING,
        "",
        f"changes(process_start_time_seconds{{{JOB}}}[30m]) > 3",
        "The dranet driver on {{ $labels.node }} starts again and again",
        "It began more than three times within half an hour. What was promised to pods is kept over a crash; "
        "new pods wait in between.",
        c.LAST_WORDS,
        "The exit code says which kind of end it was. Out of memory (137): raise the limit. 2: the settings "
        "name each bad key. Else report it with a bundle: `dranet doctor --bundle -`.",
        ("updates.md#how-an-instance-ends-and-how-long-it-takes", "doctor.md"),
    ),
    Alert(
        "DranetNotReady",
        Severity.WARNING,
        "10m",
        f'dranet_ready{{{JOB},part!="slices"}} == 0',
        "dranet on {{ $labels.node }} is not ready: {{ $labels.part }}",
        "The driver runs and a part of it cannot work: `runtime` is NRI, `kubelet` the registration, "
        "`instance` the handover from another instance. New pods with NICs wait on this node.",
        c.DOCTOR,
        "`/readyz` says the same in one line. NRI is off or its socket elsewhere; the kubelet was configured "
        "with another root folder; or an older instance does not end.",
        ("troubleshooting.md", "updates.md#what-to-watch"),
    ),
    Alert(
        "DranetSlicesNotPublished",
        Severity.WARNING,
        "10m",
        f'dranet_ready{{{JOB},part="slices"}} == 0',
        "dranet on {{ $labels.node }} cannot publish what the node offers",
        "The API server refuses the slices, or is not reached. The scheduler goes by old slices, or by none.",
        c.DOCTOR,
        "The line `slices` of `/readyz` has the server's words: a permission, an admission policy, or a "
        "field that the server does not take.",
        ("permissions.md", "troubleshooting.md#a-device-is-missing-or-not-what-you-expect"),
    ),
    Alert(
        "DranetUpdateHangs",
        Severity.WARNING,
        "30m",
        "dranet_instances > 1",
        "{{ $value }} instances of dranet on {{ $labels.node }} for half an hour",
        "An update overlaps two for a minute. Here one does not end, or the new one does not become ready. "
        "Pods are served meanwhile.",
        c.PODS_OF_NODE,
        "The log of the newer pod says what it waits for; the older one's what holds it up.",
        ("updates.md#what-to-watch",),
    ),
    Alert(
        "DranetStandsAside",
        Severity.WARNING,
        "15m",
        'dranet_instance_state{state=~"waiting|aside"} == 1',
        "dranet on {{ $labels.node }} is {{ $labels.state }} and nobody has its duties",
        "The instance that answers publishes no slices: it waits for another one, or a newer driver has "
        "written records that this one cannot read.",
        c.LOGS,
        "`waiting`: delete the pod that does not let go. `aside`: go back to the newer version, or drain the "
        "node first.",
        ("updates.md",),
    ),
    Alert(
        "DranetEventLoopLags",
        Severity.WARNING,
        "10m",
        "avg_over_time(dranet_event_loop_lag_seconds[10m]) > 0.5",
        "dranet on {{ $labels.node }} answers late",
        "Its event loop needs more than half a second to hear of anything: hooks and kubelet calls are late "
        "as well. The node has no processor time to give, or it is a bug.",
        c.PODS_OF_NODE,
        "Look for throttling (a CPU limit on the driver's pod: take it away) and for load on the node. Else "
        "send a bundle.",
        ("doctor.md",),
    ),
    Alert(
        "DranetMemoryHigh",
        Severity.WARNING,
        "30m",
        f"process_resident_memory_bytes{{{JOB}}} > {MEMORY_BYTES}",
        "dranet on {{ $labels.node }} uses {{ $value | humanize1024 }}B of memory",
        "An idle driver needs some 60 MB. With a limit on its pod it may be killed; pods keep their NICs.",
        c.BUNDLE,
        "Restarting the pod is safe. Send the bundle.",
        ("doctor.md",),
    ),
    Alert(
        "DranetFilesRunOut",
        Severity.WARNING,
        "15m",
        f"process_open_fds{{{JOB}}} / process_max_fds{{{JOB}}} > 0.8",
        "dranet on {{ $labels.node }} has most of its file descriptors open",
        "When they run out it accepts no more calls, and new pods wait.",
        c.BUNDLE,
        "Restarting the pod is safe. Raise the runtime's limit of open files (LimitNOFILE); send a bundle.",
        ("doctor.md",),
    ),
    Alert(
        "DranetScrapeIncomplete",
        Severity.INFO,
        "15m",
        "dranet_scrape_unread_pods > 0 or dranet_scrape_stuck_reads > 0",
        "dranet on {{ $labels.node }} cannot read all counters",
        "Those of some pods or devices are missing; all others go on. The kernel is slow, or hangs in a "
        "network driver, which pods may feel as well.",
        c.LOGS,
        "The log names the pod, the RDMA device or the node. `dmesg` on the node: a network driver that "
        "resets or hangs. A thread that hangs goes with the kernel's answer, or with a reboot.",
        ("metrics.md#what-a-scrape-costs",),
    ),
    Alert(
        "DranetCertificateBad",
        Severity.WARNING,
        "10m",
        "dranet_certificate_ok == 0",
        "dranet on {{ $labels.node }} cannot use its new certificate",
        "The files of the metrics port changed and do not fit together. The certificate before is shown "
        "until its time is over; then Prometheus is refused.",
        c.DOCTOR,
        "The finding `port` names the file and the mistake; mend the Secret.",
        ("node-page.md#tls",),
    ),
    Alert(
        "DranetCertificateEnds",
        Severity.WARNING,
        "30m",
        f"{_NOT_AFTER} - time() < clamp_max(0.1 * ({_NOT_AFTER} - {_NOT_BEFORE}), {7 * 86_400})",
        "The certificate of dranet on {{ $labels.node }} ends in {{ $value | humanizeDuration }}",
        "The one that the metrics port shows has less than a tenth of its time left, and less than a week, "
        "and was not renewed. When it has ended, Prometheus is refused and sees no driver any more. Pods are "
        "not affected.",
        c.DOCTOR,
        "The finding `port` says until when. Renew the Secret behind `metrics_tls_cert`, and see to what "
        "should have done so (cert-manager: `kubectl describe certificate`). The driver takes the new one by "
        "itself.",
        ("node-page.md#tls",),
    ),
    Alert(
        "DranetApiFails",
        Severity.WARNING,
        "15m",
        "node:dranet_api_failures:ratio_rate5m > 0.5",
        "dranet on {{ $labels.node }} does not get through to the API server",
        "More than half of its requests are not answered, throttled, or end with an error of the server. New "
        "pods with NICs wait.",
        c.LOGS,
        "Other nodes as well: see to the API server. This one alone: its route or its proxy to the server, "
        "or a NIC of that route that was given away.",
        ("troubleshooting.md#reasons",),
    ),
    Alert(
        "DranetApiForbids",
        Severity.WARNING,
        "10m",
        'increase(dranet_api_errors_total{reason="APIForbidden"}[30m]) > 1',
        "The API server forbids dranet on {{ $labels.node }} what it needs",
        "A permission is missing, or an admission policy refuses. What is refused is tried again.",
        c.DOCTOR,
        "The log names the rule; `kubectl apply -f deploy/rbac.yaml`, or upgrade the chart's release.",
        ("permissions.md", "admission.md"),
    ),
    Alert(
        "DranetReportsDropped",
        Severity.WARNING,
        "",
        "increase(dranet_reports_dropped_total[1h]) > 0",
        "dranet on {{ $labels.node }} gave up on what it had to tell ({{ $labels.kind }})",
        "Claim statuses or Events were found invalid by the server, or too many were waiting. Pods are not "
        "affected; what people read about them is not whole.",
        c.LOGS,
        "The log has the server's words.",
        ("troubleshooting.md#a-claim-has-no-status",),
    ),
    Alert(
        "DranetReportsWait",
        Severity.WARNING,
        "5m",
        "dranet_reports_oldest_age_seconds > 600",
        "dranet on {{ $labels.node }} cannot write what it has to tell ({{ $labels.kind }})",
        "The oldest claim status or Event has been waiting for ten minutes. Pods are not affected.",
        c.DOCTOR,
        "A permission (`ClaimStatusRefused`), or an API server that throttles.",
        ("troubleshooting.md#a-claim-has-no-status",),
    ),
    Alert(
        "DranetSliceFieldsMissing",
        Severity.INFO,
        "1h",
        "dranet_slice_fields_missing == 1",
        "The API server does not keep what {{ $labels.gate }} stands for",
        "The settings ask for taints, list attributes or shared devices, and the API server drops the field. "
        "Slices are published without it.",
        c.DOCTOR,
        "Turn on the feature gate, or take the setting away.",
        ("doctor.md", "troubleshooting.md#a-device-is-missing-or-not-what-you-expect"),
    ),
)
