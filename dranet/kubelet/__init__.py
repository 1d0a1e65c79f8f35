"""The kubelet's room. We are the server: the kubelet finds the registration socket in its registry folder,
asks for the name and endpoint, and then calls Prepare and Unprepare on the driver's own socket. gRPC messages
of every version become ``dranet.model`` nouns here; all decisions are the handler's."""
