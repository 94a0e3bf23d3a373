//! A call of a script on its way: with all the requests in it, and who sent it.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    redis::{
        answer::Answer,
        fault::Fault,
        pending::Requests,
        script::{Part, Script},
    },
    sync::std,
};

/// One reply for each part of a call.
pub(crate) type Answers = SmallVec<[Result<Answer, Fault>; 1]>;

/// Sends calls.
pub(crate) trait ScriptCaller: Send + Sync {
    /// The reply, or why there is none. It may send other calls; it must not wait.
    fn answered(self: Arc<Self>, call: ScriptCall, answers: Result<Answers, Fault>) -> Option<InFlight>;
    /// So many requests are no longer under way.
    fn landed(&self, sent: Sent, count: usize);
}

/// See the module.
pub(crate) struct ScriptCall {
    pub(crate) script: &'static Script,
    pub(crate) requests: Requests,
    pub(crate) attempt: Attempt,
    pub(crate) in_flight: InFlight,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    First,
    /// After the script was loaded.
    Second,
}

/// How requests were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// In a call of their own.
    Alone,
    /// In a call with others.
    Together,
}

/// Requests on the connection, until this is dropped.
pub(crate) struct InFlight {
    pub(crate) caller: Arc<dyn ScriptCaller>,
    pub(crate) sent: Sent,
    pub(crate) count: usize,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.caller.landed(self.sent, self.count);
    }
}

impl ScriptCall {
    pub(crate) fn parts(&self) -> impl ExactSizeIterator<Item = &Part> + Clone {
        self.requests.iter().map(|request| &request.part)
    }
}
