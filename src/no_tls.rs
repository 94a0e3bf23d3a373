//! Replaces `tls.rs` if the feature `tls` is off.

/// Has no values: without the feature no connection can be encrypted.
#[derive(Debug, Clone)]
pub(crate) enum NoTls {}

pub(crate) type TlsContext = NoTls;
