//! A token that is cancelled with the first of several.

use std::sync::OnceLock;

use futures_util::future::select_all;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Made when it is asked for. The task that watches the others ends with this value.
#[derive(Debug, Default)]
pub(super) struct AnyLost(OnceLock<Watched>);

#[derive(Debug)]
struct Watched {
    token: CancellationToken,
    _ends_the_watch: DropGuard,
}

impl AnyLost {
    /// Cancelled with the first of these. A child of the token: its caller cannot cancel it for others.
    pub(super) fn of(&self, tokens: impl Iterator<Item = CancellationToken>) -> CancellationToken {
        let tokens: Vec<_> = tokens.collect();
        self.when(async move {
            select_all(tokens.iter().map(|token| Box::pin(token.cancelled()))).await;
        })
    }

    /// Cancelled when that future ends; the first that is given counts.
    pub(super) fn when(&self, lost: impl Future<Output = ()> + Send + 'static) -> CancellationToken {
        self.0.get_or_init(|| Watched::start(lost)).token.child_token()
    }

    /// A loss was found otherwise.
    pub(super) fn cancel(&self) {
        if let Some(watched) = self.0.get() {
            watched.token.cancel();
        }
    }
}

impl Watched {
    fn start(lost: impl Future<Output = ()> + Send + 'static) -> Watched {
        let (token, released) = (CancellationToken::new(), CancellationToken::new());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (any, ends) = (token.clone(), released.clone());
            runtime.spawn(async move {
                if ends.run_until_cancelled(lost).await.is_some() {
                    any.cancel();
                }
            });
        }
        Watched { token, _ends_the_watch: released.drop_guard() }
    }
}
