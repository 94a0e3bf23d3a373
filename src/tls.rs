//! How connections are encrypted.

use std::{
    fs,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};

use crate::{
    contained::conn_event,
    error::{Error, Result},
};

/// Settings of encrypted connections, for URLs that begin with `rediss` or `valkeys`; see [`Builder::tls`](crate::Builder::tls).
///
/// By default the client checks that an authority that the system trusts has signed the server's certificate, and that it names the host
/// that the client connects to. It presents no certificate of its own.
///
/// [`Builder::connect`](crate::Builder::connect) reads the files that you set here, and the client reads them again for each connection
/// that it opens later. So it uses a replaced certificate from the next connection on. If a file is not valid by then, the client logs a
/// warning and uses the last valid contents. It reads the root certificates of the system only at `connect`, or when a client certificate
/// has changed.
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
#[must_use = "these settings do nothing until you pass them to `Builder::tls`"]
pub struct Tls {
    ca_file: Option<PathBuf>,
    client_cert: Option<(PathBuf, PathBuf)>,
    server_name: Option<String>,
}

impl Tls {
    /// The default settings.
    pub fn new() -> Tls {
        Tls::default()
    }

    /// Trusts the certificate authorities in this file (PEM) and no others. Defaults to the root certificates of the system.
    pub fn ca_file(self, path: impl AsRef<Path>) -> Self {
        Tls { ca_file: Some(path.as_ref().to_owned()), ..self }
    }

    /// Presents this certificate to the server, with this private key (both PEM). The certificate file may also contain the
    /// certificates of the authorities that signed it. Defaults to no certificate.
    pub fn client_cert(self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        Tls { client_cert: Some((certificate.as_ref().to_owned(), key.as_ref().to_owned())), ..self }
    }

    /// The host name that the server's certificate must contain. Set it if the URL has an IP address, if a proxy is in between, or if
    /// the servers of a cluster announce IP addresses. Defaults to the host that the client connects to.
    pub fn server_name(self, name: impl Into<String>) -> Self {
        Tls { server_name: Some(name.into()), ..self }
    }
}

/// The settings for encrypted connections. They name the cryptography provider explicitly, because another crate may have set a
/// different default for the process, or none.
#[derive(Clone)]
pub(crate) struct TlsContext {
    settings: Arc<Tls>,
    loaded: Arc<Mutex<Loaded>>,
    pub(crate) server_name: Option<String>,
}

/// The result of the last reading of the files.
#[derive(Default)]
struct Loaded {
    /// The contents of the files, valid or not; as a hash, because one of them is a secret.
    seen: Option<u64>,
    /// The last valid settings.
    config: Option<Arc<ClientConfig>>,
}

/// The contents of the files.
#[derive(Hash)]
struct Files {
    ca: Option<Vec<u8>>,
    client_cert: Option<(Vec<u8>, Vec<u8>)>,
}

/// The reason for which there are no settings for encryption.
#[derive(Debug, Hash)]
enum Unusable {
    /// The files are not valid.
    Wrong(String),
    /// The process or the machine cannot open more files now. It may later.
    ForNow(String),
}

impl std::fmt::Debug for TlsContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsContext(..)")
    }
}

impl TlsContext {
    /// Reads the files, so that the user gets an error about them at once.
    pub(crate) fn new(tls: &Tls) -> Result<TlsContext> {
        if let Some(name) = &tls.server_name {
            ServerName::try_from(name.as_str())
                .map_err(|_| invalid("server_name is neither a host name nor an IP address"))?;
        }
        let (settings, server_name) = (Arc::new(tls.clone()), tls.server_name.clone());
        let context = TlsContext { settings, loaded: Arc::default(), server_name };
        match context.load() {
            Ok(_) | Err(Unusable::ForNow(_)) => Ok(context), // each connection tries again
            Err(Unusable::Wrong(why)) => Err(invalid(why)),
        }
    }

    /// The settings for the next connection, from the files as they are now. If the files are not valid, for example while somebody
    /// replaces them, from their last valid contents.
    pub(crate) fn config(&self) -> std::result::Result<Arc<ClientConfig>, String> {
        self.load().map_err(Unusable::into_words)
    }

    fn load(&self) -> std::result::Result<Arc<ClientConfig>, Unusable> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let files = Files::read(&self.settings);
        let seen = Some(BuildHasherDefault::<DefaultHasher>::new().hash_one(&files));
        if let Some(config) = &loaded.config
            && loaded.seen == seen
        {
            return Ok(Arc::clone(config));
        }
        loaded.seen = seen;
        match (files.and_then(|files| files.settings(&self.settings)), loaded.config.clone()) {
            (Ok(config), _) => {
                let config = Arc::new(config);
                loaded.config = Some(Arc::clone(&config));
                Ok(config)
            }
            (Err(why), Some(before)) => {
                if matches!(why, Unusable::ForNow(_)) {
                    loaded.seen = None; // the system's authorities may be readable the next time
                }
                let why = why.into_words();
                conn_event!(warn, why, "the TLS files are not valid; new connections use their last valid contents");
                Ok(before)
            }
            (Err(why), None) => Err(why),
        }
    }
}

impl Files {
    fn read(tls: &Tls) -> std::result::Result<Files, Unusable> {
        let read = |path: &PathBuf| fs::read(path).map_err(|error| Unusable::file(path, &error));
        let ca = tls.ca_file.as_ref().map(read).transpose()?;
        let pair = tls.client_cert.as_ref();
        let client_cert = pair.map(|(certificate, key)| Ok((read(certificate)?, read(key)?))).transpose()?;
        Ok(Files { ca, client_cert })
    }

    fn settings(&self, tls: &Tls) -> std::result::Result<ClientConfig, Unusable> {
        let trusting = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| Unusable::Wrong(error.to_string()))?
            .with_root_certificates(self.roots(tls)?);
        match (&self.client_cert, &tls.client_cert) {
            (Some((certificate, key)), Some((certificate_path, key_path))) => {
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| unreadable(key_path, error))?;
                let certificates = certificates(certificate_path, certificate)?;
                let showing = trusting.with_client_auth_cert(certificates, key);
                showing.map_err(|error| Unusable::Wrong(error.to_string()))
            }
            _ => Ok(trusting.with_no_client_auth()),
        }
    }

    fn roots(&self, tls: &Tls) -> std::result::Result<RootCertStore, Unusable> {
        let (whose, trusted) = match (&self.ca, &tls.ca_file) {
            (Some(ca), Some(path)) => (path.to_string_lossy(), certificates(path, ca)?),
            _ => ("the system".into(), system_roots()?),
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(trusted);
        if roots.is_empty() {
            return Err(Unusable::Wrong(format!("{whose} has no certificate authority that can be used")));
        }
        Ok(roots)
    }
}

/// The root certificates of the system. An error if there are none because they could not be read.
fn system_roots() -> std::result::Result<Vec<CertificateDer<'static>>, Unusable> {
    let found = rustls_native_certs::load_native_certs();
    match found.errors.into_iter().next() {
        Some(error) if found.certs.is_empty() => {
            let why = format!("the root certificates of the system cannot be read: {error}");
            match error.kind {
                rustls_native_certs::ErrorKind::Io { inner, .. } => Err(Unusable::io(why, &inner)),
                _ => Err(Unusable::Wrong(why)),
            }
        }
        _ => Ok(found.certs),
    }
}

impl Unusable {
    fn file(path: &Path, error: &io::Error) -> Unusable {
        Unusable::io(format!("{} cannot be read: {error}", path.display()), error)
    }

    fn io(why: String, error: &io::Error) -> Unusable {
        /// The limit of the machine, and the limit of the process.
        const TOO_MANY_OPEN: [i32; 2] = if cfg!(windows) { [10_024, 4] } else { [23, 24] };
        match error.raw_os_error() {
            Some(code) if TOO_MANY_OPEN.contains(&code) => Unusable::ForNow(why),
            _ => Unusable::Wrong(why),
        }
    }

    fn into_words(self) -> String {
        let (Unusable::Wrong(why) | Unusable::ForNow(why)) = self;
        why
    }
}

fn certificates(path: &Path, pem: &[u8]) -> std::result::Result<Vec<CertificateDer<'static>>, Unusable> {
    CertificateDer::pem_slice_iter(pem).collect::<std::result::Result<_, _>>().map_err(|error| unreadable(path, error))
}

fn unreadable(path: &Path, error: impl std::fmt::Display) -> Unusable {
    Unusable::Wrong(format!("{} cannot be read: {error}", path.display()))
}

fn invalid(reason: impl Into<String>) -> Error {
    Error::config("tls", reason)
}
