//! A server that speaks TLS only, and the certificates for it, made when the test runs: none can expire in the repository.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use tempfile::TempDir;

use crate::support::server::{Look, Server, owned, usual};

/// What the server's certificate is for, unless the test says otherwise.
pub(crate) const HERE: [&str; 2] = ["localhost", "127.0.0.1"];

/// Tests look at a server that speaks TLS only through its unix socket, without.
pub(super) const LOOK: Look = Look { by_socket: true, password: None };

pub(crate) struct Tls {
    server: Server,
    certificates: Certificates,
}

impl Tls {
    /// Lets in whoever trusts it.
    pub(crate) fn start() -> Tls {
        Tls::with(Certificates::here(), "no")
    }

    /// Lets in only who has a certificate of its CA.
    pub(crate) fn for_known_clients() -> Tls {
        Tls::with(Certificates::here(), "yes")
    }

    /// With a certificate for that name, and not for where it is.
    pub(crate) fn named(name: &str) -> Tls {
        Tls::with(Certificates::new(&[name]), "no")
    }

    fn with(certificates: Certificates, clients_need_one: &str) -> Tls {
        let server = Server::made(LOOK, |port, dir| {
            // Who asks for localhost may try ::1 first.
            let more = owned(&["--bind", "127.0.0.1", "-::1", "--tls-auth-clients", clients_need_one]);
            [usual(port, dir), certificates.only_tls(port), more].concat()
        });
        Tls { server, certificates }
    }

    pub(crate) fn url(&self) -> String {
        format!("rediss://localhost:{}", self.server.port())
    }

    /// By address, where the certificate must name that instead.
    pub(crate) fn url_by_address(&self) -> String {
        format!("rediss://127.0.0.1:{}", self.server.port())
    }

    /// To look at it: that goes through its unix socket, without TLS.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    pub(crate) fn server_mut(&mut self) -> &mut Server {
        &mut self.server
    }

    pub(crate) fn certificates(&self) -> &Certificates {
        &self.certificates
    }
}

/// PEM files in a folder of their own.
pub(crate) struct Certificates {
    dir: TempDir,
}

impl Certificates {
    pub(crate) fn new(names: &[&str]) -> Certificates {
        let made = Certificates { dir: TempDir::new().expect("a temporary folder") };
        made.replace(names);
        made
    }

    /// Makes all of them anew, by other authorities, in the same files.
    pub(crate) fn replace(&self, names: &[&str]) {
        let (ca, other) = (self.authority("ca", "tests"), self.authority("other-ca", "somebody else"));
        // The servers of a cluster prove themselves to each other as clients, too.
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.certificate("server", names, &both, &ca);
        self.certificate("client", &["client"], &both[1..], &ca);
        self.certificate("other-client", &["client"], &both[1..], &other);
    }

    /// For a server that is where the tests are.
    pub(super) fn here() -> Certificates {
        Certificates::new(&HERE)
    }

    /// What makes a server speak TLS on that port, and to other servers, and nothing else; to whoever comes.
    pub(super) fn only_tls(&self, port: u16) -> Vec<String> {
        let (port, folder) = (port.to_string(), self.folder().display());
        let files = ["cert-file", "key-file", "ca-cert-file"].map(|what| format!("--tls-{what}"));
        let names = ["server.crt", "server.key", "ca.crt"].map(|name| format!("{folder}/{name}"));
        let files = files.into_iter().zip(names).flat_map(|(what, name)| [what, name]);
        let ports = ["--port", "0", "--tls-port", &port, "--tls-replication", "yes", "--tls-auth-clients", "no"];
        owned(&ports).into_iter().chain(files).collect()
    }

    /// Whom clients are to trust.
    pub(crate) fn ca(&self) -> PathBuf {
        self.file("ca.crt")
    }

    /// One that has nothing to do with the server.
    pub(crate) fn other_ca(&self) -> PathBuf {
        self.file("other-ca.crt")
    }

    /// A client's certificate and its key.
    pub(crate) fn client(&self) -> (PathBuf, PathBuf) {
        (self.file("client.crt"), self.file("client.key"))
    }

    /// A client's certificate by the other CA, and its key.
    pub(crate) fn other_client(&self) -> (PathBuf, PathBuf) {
        (self.file("other-client.crt"), self.file("other-client.key"))
    }

    fn authority(&self, file: &str, name: &str) -> Issuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("good parameters");
        self.write(file, &certificate.pem(), &key);
        Issuer::new(params, key)
    }

    fn certificate(&self, file: &str, names: &[&str], purposes: &[ExtendedKeyUsagePurpose], by: &Issuer<'_, KeyPair>) {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names or addresses");
        params.distinguished_name.push(DnType::CommonName, file);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = purposes.to_vec();
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, by).expect("good parameters");
        self.write(file, &certificate.pem(), &key);
    }

    fn write(&self, file: &str, certificate: &str, key: &KeyPair) {
        for (ending, text) in [("crt", certificate), ("key", &key.serialize_pem())] {
            fs::write(self.file(&format!("{file}.{ending}")), text).expect("our own folder");
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    fn folder(&self) -> &Path {
        self.dir.path()
    }
}
