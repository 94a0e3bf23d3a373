//! The spans of `tracing` around acquiring, holding and releasing. docs/observing.md lists their fields.
//!
//! The fields follow OpenTelemetry's conventions for database clients; those about locks begin with `lock.`. All spans are at debug level.
//! Without a subscriber for them, a span costs the check of one number.

use tracing::{Span, field::Empty};

use crate::{
    contained::contained,
    error::{Error, Lost},
    events::Subject,
};

/// The server in spans: as in the URL, without the login.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServerLabel {
    pub(crate) address: Box<str>,
    /// `None` if it is the usual one, or stands in the address.
    pub(crate) port: Option<u16>,
    pub(crate) database: u8,
}

macro_rules! span {
    ($name:literal $(in $parent:expr)?, $server:expr, $lock:expr, $($more:tt)*) => {
        tracing::debug_span!(
            target: "leasehold::lock",
            $(parent: $parent,)?
            $name,
            lock.name = $lock.name,
            lock.kind = $lock.kind.label(),
            $($more)*
            db.system.name = "redis",
            db.namespace = %$server.database,
            server.address = &*$server.address,
            server.port = $server.port,
            "error.type" = Empty,
            otel.status_code = Empty,
        )
    };
}

/// A call for a lock, from its beginning to its result.
pub(crate) fn acquire(server: &ServerLabel, lock: Subject<'_>, method: &'static str) -> Span {
    span!(
        "acquire",
        server,
        lock,
        lock.method = method,
        lock.outcome = Empty,
        lock.id = Empty,
        otel.kind = "client",
        db.operation.name = "EVALSHA",
        db.stored_procedure.name = "acquire",
    )
}

/// A request about a lock, not about a hold of this client.
pub(crate) fn tell(server: &ServerLabel, lock: Subject<'_>, method: &'static str) -> Span {
    span!(
        "tell",
        server,
        lock,
        lock.method = method,
        otel.kind = "client",
        db.operation.name = "EVALSHA",
        db.stored_procedure.name = method,
    )
}

/// The call for a lock acquired a hold. `id` is called only if somebody subscribes to the span.
pub(crate) fn note_acquired<'a>(span: &Span, id: impl FnOnce() -> &'a str) {
    if !span.is_disabled() {
        span.record("lock.outcome", "acquired").record("lock.id", id());
    }
}

/// The wait for a latch is over.
pub(crate) fn note_passed(span: &Span) {
    span.record("lock.outcome", "passed");
}

pub(crate) fn note_given_up(span: &Span) {
    span.record("lock.outcome", "gave_up");
}

pub(crate) fn note_failed(span: &Span, error: &Error) {
    span.record("lock.outcome", "failed");
    note_error(span, error);
}

pub(crate) fn note_error(span: &Span, error: &Error) {
    fail(span, error.failure().label());
}

fn fail(span: &Span, kind: &'static str) {
    span.record("error.type", kind).record("otel.status_code", "ERROR");
}

/// The span of a hold, from the grant to the end of its guard. Empty for most guards, so it is in a box.
#[derive(Debug, Default)]
pub(crate) struct HoldSpan(Option<Box<Span>>);

impl HoldSpan {
    /// `id` is called only if somebody subscribes to the span.
    pub(crate) fn new<'a>(server: &ServerLabel, lock: Subject<'_>, id: impl FnOnce() -> &'a str) -> HoldSpan {
        let span = span!("hold", server, lock, lock.id = id(), lock.lost = Empty,);
        HoldSpan((!span.is_disabled()).then(|| Box::new(span)))
    }

    /// The span of the release, below that of the hold.
    pub(crate) fn release<'a>(&self, server: &ServerLabel, lock: Subject<'_>, id: impl FnOnce() -> &'a str) -> Span {
        let Some(hold) = &self.0 else { return Span::none() };
        span!("release" in &**hold, server, lock,
            lock.id = id(),
            otel.kind = "client",
            db.operation.name = "EVALSHA",
            db.stored_procedure.name = "release",
        )
    }

    /// The lock was lost before its release. `loss` is called only if somebody subscribes to the span.
    pub(crate) fn note_loss(&self, loss: impl FnOnce() -> Option<Lost>) {
        let Some(span) = &self.0 else { return };
        if let Some(reason) = loss() {
            contained(|| {
                span.record("lock.lost", reason.label());
                fail(span, "lost");
            });
        }
    }
}

/// A guard may be dropped while its task panics. A second panic, of the subscriber, would end the process.
impl Drop for HoldSpan {
    fn drop(&mut self) {
        if let Some(span) = self.0.take() {
            contained(|| drop(span));
        }
    }
}
