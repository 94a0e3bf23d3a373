//! The user and the password for a server, and the function that provides them.

use std::{error::Error as StdError, fmt, future::Future, sync::Arc};

use futures_util::future::BoxFuture;

use crate::error::Source;

/// A user and a password, for [`Builder::credentials`](crate::Builder::credentials). leasehold never prints either of them.
///
/// ```
/// use leasehold::Credentials;
///
/// let login = Credentials::new("billing", "s3cret");
/// assert!(!format!("{login:?}").contains("s3cret"));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl Credentials {
    /// A user and the password of that user.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Credentials {
        Credentials { user: Some(user.into()), password: Some(password.into()) }
    }

    /// The password of the default user.
    pub fn password(password: impl Into<String>) -> Credentials {
        Credentials { user: None, password: Some(password.into()) }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// Called for each new connection.
type Provide = dyn Fn() -> BoxFuture<'static, Result<Credentials, Source>> + Send + Sync;

/// Provides the user and the password for a new connection.
#[derive(Clone)]
pub(crate) struct CredentialsProvider(Arc<Provide>);

impl CredentialsProvider {
    pub(crate) fn new<F, W, E>(provide: F) -> CredentialsProvider
    where
        F: Fn() -> W + Send + Sync + 'static,
        W: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        CredentialsProvider(Arc::new(move || {
            let provided = provide();
            Box::pin(async move { provided.await.map_err(|error| Source::from(error.into())) })
        }))
    }

    pub(crate) async fn ask(&self) -> Result<Credentials, Source> {
        (self.0)().await
    }
}

impl fmt::Debug for CredentialsProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialsProvider(..)")
    }
}
