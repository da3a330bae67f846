//! The tokenizer-manager process: HTTP and gRPC front.
