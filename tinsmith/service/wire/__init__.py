"""The shapes on the wire: JSON requests, protobuf messages, tensors; knows nothing above it."""
