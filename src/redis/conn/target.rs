//! Where the server is: the URL, read.

use fred::types::config::Config as FredConfig;

use crate::error::{Error, Result};

/// Where the server is and who we are there. Not printable: it can hold a password.
pub(crate) struct Target(pub(super) FredConfig);

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Target(..)")
    }
}

impl Target {
    /// Reads `redis://[user:password@]host[:port][/db]` and `redis+unix://[user:password@]/path[?db=n]`, with
    /// `valkey` for `redis` where preferred.
    pub(crate) fn parse(url: &str) -> Result<Target> {
        let invalid = |reason: &str| Error::config("url", reason);
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("it has no scheme such as redis://"))?;
        let scheme = match scheme {
            "redis" | "valkey" => "redis",
            "redis+unix" | "valkey+unix" => "redis+unix",
            "rediss" | "valkeys" | "redis-cluster" | "valkey-cluster" | "rediss-cluster" | "valkeys-cluster"
            | "redis-sentinel" | "valkey-sentinel" | "rediss-sentinel" | "valkeys-sentinel" => {
                return Err(invalid("TLS, cluster and sentinel are not supported by this version"));
            }
            _ => return Err(invalid("its scheme is none of redis://, redis+unix:// and their valkey twins")),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // fred's error could repeat the URL, and with it a password.
        let mut config =
            FredConfig::from_url(&format!("{scheme}://{rest}")).map_err(|_| invalid("it is not a valid URL"))?;
        if !query.is_empty() {
            let db = query.strip_prefix("db=").and_then(|db| db.parse().ok());
            config.database = Some(db.ok_or_else(|| invalid("its only parameter is db=NUMBER"))?);
        }
        Ok(Target(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for good in [
            "redis://h",
            "valkey://u:p@h:1/2",
            "redis://:p@[::1]:6380",
            "redis+unix:///run/r.sock",
            "valkey+unix:///r.sock?db=3",
        ] {
            Target::parse(good).expect(good);
        }
        for bad in ["", "h:6379", "http://h:1", "rediss://h", "redis-cluster://h", "redis://h:99999", "redis://h?x=1"] {
            Target::parse(bad).expect_err(bad);
        }
    }

    #[test]
    fn a_password_is_never_printed() {
        let target = Target::parse("redis://ann:s3cret@h").expect("good");
        assert!(!format!("{target:?}").contains("s3cret"));
        let error = Target::parse("redis://ann:s3cret@h:99999").expect_err("bad port");
        assert!(!format!("{error} {error:?}").contains("s3cret"));
    }
}
