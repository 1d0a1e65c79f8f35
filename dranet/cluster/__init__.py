"""The room of the API server: a small JSON client and what the driver does with it.

It publishes this node's ResourceSlices, fetches claims, reports device status and writes Events. It
talks HTTP/1.1 to the API server and gives plain nouns to the corridor; API JSON does not leave this
room except ``ApiClient`` itself. It must not know netlink, the kubelet or the container runtime.
"""
