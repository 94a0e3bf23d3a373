//! Parses a URL: the addresses of the servers, and the user and password for them.

use std::{fmt, net::Ipv6Addr, path::PathBuf, sync::Arc};

use percent_encoding::percent_decode_str;

use crate::{
    credentials::Credentials,
    error::{Error, Result},
    spans::ServerLabel,
};

const STANDARD_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// A valid URL. Never printed, because it can contain passwords.
#[derive(Clone)]
pub(crate) struct Url {
    pub(super) shape: Shape,
    pub(super) credentials: Credentials,
    pub(super) database: Option<u8>,
    pub(super) tls: bool,
}

/// The deployment that a URL names.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Shape {
    One(Address),
    /// Sentinels that know the master of a service, and the login for them.
    Sentinel {
        sentinels: Vec<Address>,
        service: String,
        credentials: Credentials,
    },
    /// Some servers of a cluster. They know the others.
    Cluster(Vec<Address>),
}

/// The address on which one server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Address {
    Tcp(Arc<str>, u16),
    Unix(PathBuf),
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Url(..)")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Address {
    fn parts(&self) -> (String, Option<u16>) {
        match self {
            Address::Tcp(host, port) => (host.to_string(), Some(*port)),
            Address::Unix(path) => (path.display().to_string(), None),
        }
    }

    /// Reads `host`, `host:port`, `[::1]` and `[::1]:port`; and `::1:port`, which is the form that servers of a cluster use.
    pub(super) fn parse(text: &str, standard_port: u16) -> Option<Address> {
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':')?)),
            None => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map_or(Some(standard_port), |port| port.parse().ok().filter(|port| *port != 0))?;
        (!host.is_empty()).then(|| Address::Tcp(host.into(), port))
    }
}

impl Url {
    /// The addresses of the servers, without the login and the database.
    pub(crate) fn place(&self) -> String {
        match &self.shape {
            Shape::One(address) => address.to_string(),
            Shape::Sentinel { sentinels, service, .. } => format!("{}/{service}", joined(sentinels)),
            Shape::Cluster(seeds) => joined(seeds),
        }
    }

    /// The server as OpenTelemetry's conventions describe it: a common port stands apart, and the usual one nowhere.
    pub(crate) fn server(&self) -> ServerLabel {
        let (address, port) = match &self.shape {
            Shape::One(address) => apart(std::slice::from_ref(address)),
            Shape::Sentinel { .. } => (self.place(), None),
            Shape::Cluster(seeds) => apart(seeds),
        };
        ServerLabel { address: address.into(), port, database: self.database() }
    }

    pub(crate) fn database(&self) -> u8 {
        self.database.unwrap_or_default()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.shape, Shape::Cluster(_))
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls
    }

    /// Reads `redis://[user:password@]host[:port][/db]`, `redis+unix://[user:password@]/path[?db=n]`,
    /// `redis-sentinel://[user:password@]host[:port],../service[/db][?sentinel_user=..&sentinel_password=..]` and
    /// `redis-cluster://[user:password@]host[:port],..`; all but the second also with `rediss` for TLS, and all with `valkey`.
    pub(crate) fn parse(url: &str) -> Result<Url> {
        Url::read(url).map_err(|reason| Error::config("url", reason))
    }

    /// The reason in an error contains no part of the URL that may be part of a password.
    fn read(url: &str) -> std::result::Result<Url, String> {
        let (scheme, rest) = url.split_once("://").ok_or("it has no scheme such as redis://")?;
        let (tls, kind) = split_scheme(scheme).ok_or(UNKNOWN_SCHEME)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if query.contains('@') && !Query::is_well_begun(query) {
            return Err(QUESTION_MARK.to_owned());
        }
        let (login, rest) = split_login(rest, kind);
        if let Some(login) = login {
            once(login, kind)?;
        }
        let login = login.map(credentials).transpose()?.unwrap_or_default();
        let mut query = Query::parse(query)?;
        let (shape, database) = match kind {
            "+unix" => (unix(rest)?, query.take("db").map(|db| database(&db)).transpose()?),
            "-sentinel" => sentinel(rest, &mut query)?,
            "-cluster" => cluster(rest)?,
            _ => standalone(rest)?,
        };
        match query.unknown() {
            None => Ok(Url { shape, credentials: login, database, tls }),
            Some(name) => Err(format!(
                "it has the unknown parameter {name:?}; there are only db (for redis+unix), sentinel_user and sentinel_password \
                 (for redis-sentinel); other settings are those of Builder"
            )),
        }
    }
}

/// A password may contain an @ that is not encoded, but no slash. So may the path of a socket.
fn split_login<'a>(rest: &'a str, kind: &str) -> (Option<&'a str>, &'a str) {
    let end = if kind == "+unix" { rest.find('/').unwrap_or(rest.len()) } else { rest.len() };
    match rest[..end].rfind('@') {
        Some(at) => (Some(&rest[..at]), &rest[at + 1..]),
        None => (None, rest),
    }
}

const QUESTION_MARK: &str = "it has an @ after a ?; write a ? in a password as %3F";

/// The login stands once, before the first host. A comma that is not encoded more likely separates hosts, each with a login of its
/// own, than belongs to a password.
fn once(login: &str, kind: &str) -> std::result::Result<(), &'static str> {
    let is_list = match kind {
        "-sentinel" | "-cluster" => login.contains(','),
        _ => login.split_once('@').is_some_and(|(_, rest)| rest.contains(',')),
    };
    if is_list { Err(LOGIN_ONCE) } else { Ok(()) }
}

const LOGIN_ONCE: &str = "write the user and the password once, before the first host, as in \
    redis-cluster://user:password@host,host; write a comma in a password as %2C";

const UNKNOWN_SCHEME: &str = "its scheme must be one of redis://, rediss://, redis+unix://, redis-sentinel://, rediss-sentinel://, \
    redis-cluster://, rediss-cluster://, or one of these with valkey instead of redis";

/// Whether the connection uses TLS, and the rest of the scheme.
fn split_scheme(scheme: &str) -> Option<(bool, &str)> {
    let rest = scheme.strip_prefix("redis").or_else(|| scheme.strip_prefix("valkey"))?;
    let (tls, kind) = rest.strip_prefix('s').map_or((false, rest), |kind| (true, kind));
    let is_known = matches!(kind, "" | "-sentinel" | "-cluster") || kind == "+unix" && !tls;
    is_known.then_some((tls, kind))
}

fn standalone(rest: &str) -> std::result::Result<(Shape, Option<u8>), &'static str> {
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    if host.contains(',') {
        return Err("it names several servers; that needs redis-cluster:// or redis-sentinel://");
    }
    let address = address(host, STANDARD_PORT)?;
    let database = (!path.is_empty()).then(|| database(path)).transpose()?;
    Ok((Shape::One(address), database))
}

fn unix(rest: &str) -> std::result::Result<Shape, &'static str> {
    let path = decoded(rest)?;
    path.starts_with('/')
        .then(|| Shape::One(Address::Unix(path.into())))
        .ok_or("the path of the socket must begin with /")
}

fn sentinel(rest: &str, query: &mut Query) -> std::result::Result<(Shape, Option<u8>), &'static str> {
    let (hosts, path) = rest.split_once('/').ok_or(NO_SERVICE)?;
    let (service, number) = path.split_once('/').unwrap_or((path, ""));
    let service = decoded(service)?;
    if service.is_empty() {
        return Err(NO_SERVICE);
    }
    let credentials = Credentials { user: query.take("sentinel_user"), password: query.take("sentinel_password") };
    let database = (!number.is_empty()).then(|| database(number)).transpose()?;
    Ok((Shape::Sentinel { sentinels: addresses(hosts, SENTINEL_PORT)?, service, credentials }, database))
}

const NO_SERVICE: &str = "the name of the service is missing, as in redis-sentinel://host,host/mymaster";

fn cluster(rest: &str) -> std::result::Result<(Shape, Option<u8>), &'static str> {
    let (hosts, number) = rest.split_once('/').unwrap_or((rest, ""));
    let database = (!number.is_empty()).then(|| database(number)).transpose()?;
    Ok((Shape::Cluster(addresses(hosts, STANDARD_PORT)?), database))
}

/// The hosts and their common port: `None` if that is the usual one. If the ports differ, they stay with the hosts.
fn apart(addresses: &[Address]) -> (String, Option<u16>) {
    let mut parts: Vec<_> = addresses.iter().map(Address::parts).collect();
    parts.sort();
    let common = parts.first().and_then(|(_, port)| *port);
    if parts.iter().any(|(_, port)| *port != common) {
        return (joined(addresses), None);
    }
    let hosts: Vec<_> = parts.into_iter().map(|(host, _)| host).collect();
    (hosts.join(","), common.filter(|port| *port != STANDARD_PORT))
}

fn joined(addresses: &[Address]) -> String {
    addresses.iter().map(Address::to_string).collect::<Vec<_>>().join(",")
}

fn addresses(hosts: &str, standard_port: u16) -> std::result::Result<Vec<Address>, &'static str> {
    hosts.split(',').map(|host| address(host, standard_port)).collect()
}

/// Reads an address in a URL. A host that cannot be valid is refused here, so that the error does not come only when it is resolved.
fn address(text: &str, standard_port: u16) -> std::result::Result<Address, &'static str> {
    if text.chars().any(|char| char.is_control() || char.is_whitespace()) {
        return Err("a host contains a space or a control character, such as a line break");
    }
    if let Some(rest) = text.strip_prefix('[') {
        let inside = rest.split_once(']').map(|(inside, _)| inside.split_once('%').map_or(inside, |(ip, _zone)| ip));
        if inside.is_none_or(|inside| inside.parse::<Ipv6Addr>().is_err()) {
            return Err(NO_IPV6);
        }
    } else if text.matches(':').count() > 1 {
        return Err(NO_IPV6);
    } else if text.contains(|char| "[]\\\"#<>^`{|}".contains(char)) {
        return Err(NO_HOST);
    }
    Address::parse(text, standard_port).ok_or(NO_HOST)
}

const NO_IPV6: &str = "write an IPv6 address in brackets, as in redis://[::1]:6379";

const NO_HOST: &str = "a host or a port is not valid";

fn database(text: &str) -> std::result::Result<u8, &'static str> {
    text.parse().map_err(|_| "the database is not a number from 0 to 255")
}

fn decoded(text: &str) -> std::result::Result<String, &'static str> {
    let text =
        percent_decode_str(text).decode_utf8().map_err(|_| "a part that is encoded with % is not valid UTF-8")?;
    Ok(text.into_owned())
}

fn credentials(text: &str) -> std::result::Result<Credentials, &'static str> {
    let (user, password) = text.split_once(':').map_or((text, None), |(user, password)| (user, Some(password)));
    let user = Some(decoded(user)?).filter(|user| !user.is_empty());
    Ok(Credentials { user, password: password.map(decoded).transpose()? })
}

/// The part of a URL after the question mark.
struct Query(Vec<(String, String)>);

impl Query {
    fn parse(text: &str) -> std::result::Result<Query, &'static str> {
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').ok_or("a parameter is not of the form name=value")?;
            Ok((decoded(name)?, decoded(value)?))
        };
        text.split('&').filter(|text| !text.is_empty()).map(pair).collect::<std::result::Result<_, _>>().map(Query)
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(at).1)
    }

    /// True if it begins with a parameter that a URL may have: so it is no part of a password.
    fn is_well_begun(text: &str) -> bool {
        ["db=", "sentinel_user=", "sentinel_password="].iter().any(|known| text.starts_with(known))
    }

    /// The name of a parameter that was not taken.
    fn unknown(&self) -> Option<&str> {
        self.0.first().map(|(name, _)| &**name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.into(), port)
    }

    #[test]
    fn the_server_in_spans() {
        for (url, address, port) in [
            ("redis://u:p@h", "h", None),
            ("redis://h:7000/3", "h", Some(7000)),
            ("redis+unix:///run/redis.sock", "/run/redis.sock", None),
            ("redis-cluster://b,a", "a,b", None),
            ("redis-cluster://b:7000,a:7000", "a,b", Some(7000)),
            ("redis-cluster://b:7000,a:7001", "b:7000,a:7001", None),
            ("redis-sentinel://u:p@a,b/main", "a:26379,b:26379/main", None),
        ] {
            let server = Url::parse(url).expect("good").server();
            assert_eq!((&*server.address, server.port), (address, port), "{url}");
        }
        assert_eq!(Url::parse("redis://h:7000/3").expect("good").server().database, 3);
    }

    #[test]
    fn urls() {
        let one = Url::parse("valkey://u:p%40%2F@h:1/2").expect("good");
        assert!(one.shape == Shape::One(tcp("h", 1)) && one.database == Some(2) && !one.tls);
        assert_eq!((one.credentials.user.as_deref(), one.credentials.password.as_deref()), (Some("u"), Some("p@/")));
        let six = Url::parse("rediss://:p@[::1]").expect("good");
        assert!(six.shape == Shape::One(tcp("::1", 6379)) && six.tls && six.credentials.user.is_none());
        let unix = Url::parse("valkey+unix:///r.sock?db=3").expect("good");
        assert!(unix.shape == Shape::One(Address::Unix("/r.sock".into())) && unix.database == Some(3));
        let cluster = Url::parse("valkeys-cluster://a,b:7000").expect("good");
        assert!(cluster.shape == Shape::Cluster(vec![tcp("a", 6379), tcp("b", 7000)]) && cluster.tls);
    }

    #[test]
    fn sentinels() {
        let url = Url::parse("redis-sentinel://u:p@a,b:1/main/4?sentinel_password=s&sentinel_user=w").expect("good");
        let credentials = Credentials { user: Some("w".into()), password: Some("s".into()) };
        let sentinels = vec![tcp("a", 26379), tcp("b", 1)];
        assert!(url.shape == Shape::Sentinel { sentinels, service: "main".into(), credentials });
        assert!(url.database == Some(4) && url.credentials.password.as_deref() == Some("p"));
    }

    #[test]
    fn who_we_are_may_have_any_letters() {
        for (url, password) in
            [("redis://:a,b@h", "a,b"), ("redis://:p@ss@h", "p@ss"), ("redis-cluster://:a%2Cb@h,i", "a,b")]
        {
            assert_eq!(Url::parse(url).expect(url).credentials.password.as_deref(), Some(password));
        }
        let socket = Url::parse("redis+unix://u:p@/run/a@b.sock?db=3").expect("good");
        assert!(socket.shape == Shape::One(Address::Unix("/run/a@b.sock".into())) && socket.database() == 3);
        let scoped = Url::parse("redis://[fe80::1%25eth0]:1").expect("good");
        assert!(scoped.shape == Shape::One(tcp("fe80::1%25eth0", 1)));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (url, words) in [
            ("redis://a:1,b:2", "redis-cluster://"),
            ("redis://[::1", "brackets"),
            ("redis://h\n", "control character"),
            ("redis-cluster://u:p@a,u:p@b", "once, before the first host"),
            ("redis://h?tls=yes", "unknown parameter \"tls\""),
            ("redis://:p?w@h", "%3F"),
            ("redis-sentinel://:p?w@h/main", "%3F"),
        ] {
            let told = Url::parse(url).expect_err(url).to_string();
            assert!(told.contains(words), "{told}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_said_without_it() {
        let bad = [
            "",
            "h:6379",
            "http://s3cret:1",
            "redis://:s3cret@h:99999",
            "redis://h?x=s3cret",
            "redis://h/s3cret",
            "redis://",
            "rediss+unix:///s3cret",
            "redis+unix://s3cret",
            "redis-sentinel://s3cret",
            "redis-sentinel://a,/s3cret",
            "redis-cluster://h/s3cret",
            "redis://u:s3cret%ff@h",
            "redis://u:s3cret?s3cret@h",
            "redis://h:0",
            "rediscluster://s3cret",
            "redis://s3cret:1,b:2",
            "redis://[::1",
            "redis://[s3cret]",
            "redis://::1:6379",
            "redis://s3cret\n",
            "redis://s3\u{7}cret:6379",
            "redis://s3 cret",
            "redis://s3cret#1",
            "redis-cluster://u:s3cret@a,u:s3cret@b",
            "redis-cluster://a,u:s3cret@b",
            "redis-cluster://a:7000,u:s3cret@b",
            "redis-sentinel://u:s3cret@a,u:s3cret@b/main",
            "redis://u:s3cret@a,u:s3cret@b",
        ];
        for bad in bad {
            let error = Url::parse(bad).expect_err(bad);
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{bad}");
        }
        assert_eq!(format!("{:?}", Url::parse("redis://:s3cret@h").expect("good")), "Url(..)");
    }
}
