//! In the place of `tls.rs` without the feature `tls`.

/// Nothing can be encrypted.
#[derive(Debug, Clone)]
pub(crate) enum NoTls {}

pub(crate) type TlsContext = NoTls;
