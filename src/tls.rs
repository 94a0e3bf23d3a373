//! How connections are encrypted.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ClientConfig, ConfigBuilder, RootCertStore,
    client::WantsClientCert,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};

use crate::error::{Error, Result};

/// Settings of encrypted connections, for URLs that begin with `rediss` or `valkeys`; see [`Builder::tls`](crate::Builder::tls).
///
/// Without any the server's certificate is checked against the roots of the system and the host in the URL, and we show no
/// certificate of our own.
///
/// ```no_run
/// # async fn run() -> leasehold::Result<()> {
/// use leasehold::{Client, Tls};
///
/// let tls = Tls::new().ca_file("/etc/ssl/our-ca.pem").client_cert("/run/us.pem", "/run/us.key");
/// let client = Client::builder().url("rediss://cache.internal").tls(tls).connect().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "it does nothing until a Builder has it"]
pub struct Tls {
    ca_file: Option<PathBuf>,
    client_cert: Option<(PathBuf, PathBuf)>,
    server_name: Option<String>,
}

impl Tls {
    /// The roots of the system, the name in the URL, no certificate of our own.
    pub fn new() -> Tls {
        Tls::default()
    }

    /// Trusts the authorities in this file (PEM) and no others. Defaults to the roots of the system.
    pub fn ca_file(self, path: impl AsRef<Path>) -> Self {
        Tls { ca_file: Some(path.as_ref().to_owned()), ..self }
    }

    /// Shows this certificate, with what signs it if anything does, and proves it with this key (both PEM). Defaults to none.
    pub fn client_cert(self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        Tls { client_cert: Some((certificate.as_ref().to_owned(), key.as_ref().to_owned())), ..self }
    }

    /// The name that the server's certificate must be for: where the URL has an address, a proxy stands between, or the
    /// servers of a cluster tell each other by addresses. Defaults to the host.
    pub fn server_name(self, name: impl Into<String>) -> Self {
        Tls { server_name: Some(name.into()), ..self }
    }
}

/// What it takes to encrypt a connection, checked. Names its back end itself: another crate may have chosen another for the
/// process, or none.
#[derive(Clone)]
pub(crate) struct TlsContext {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) server_name: Option<String>,
}

impl std::fmt::Debug for TlsContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsContext(..)")
    }
}

impl TlsContext {
    /// Reads the files.
    pub(crate) fn new(tls: &Tls) -> Result<TlsContext> {
        if let Some(name) = &tls.server_name {
            ServerName::try_from(name.as_str()).map_err(|_| invalid("server_name is neither a host nor an address"))?;
        }
        let trusting = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(error.to_string()))?
            .with_root_certificates(roots(tls.ca_file.as_deref())?);
        let config = Arc::new(showing(trusting, tls)?);
        Ok(TlsContext { config, server_name: tls.server_name.clone() })
    }
}

fn roots(ca_file: Option<&Path>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let trusted = match ca_file {
        Some(path) => certificates(path)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    roots.add_parsable_certificates(trusted);
    if roots.is_empty() {
        let whose = ca_file.map_or("the system".into(), Path::to_string_lossy);
        return Err(invalid(format!("{whose} has no authority that can be trusted")));
    }
    Ok(roots)
}

fn showing(trusting: ConfigBuilder<ClientConfig, WantsClientCert>, tls: &Tls) -> Result<ClientConfig> {
    let Some((certificate, key)) = &tls.client_cert else { return Ok(trusting.with_no_client_auth()) };
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, error))?;
    trusting.with_client_auth_cert(certificates(certificate)?, key).map_err(|error| invalid(error.to_string()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<std::result::Result<_, _>>();
    read().map_err(|error| unreadable(path, error))
}

fn unreadable(path: &Path, error: impl std::fmt::Display) -> Error {
    invalid(format!("{} cannot be read: {error}", path.display()))
}

fn invalid(reason: impl Into<String>) -> Error {
    Error::config("tls", reason)
}
