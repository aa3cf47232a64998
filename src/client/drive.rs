//! Attempts of one request until it is answered, refused, or out of time.
//!
//! Promises: every attempt is the same request under the same key; what each attempt left unknown
//! is remembered ([`Driven::unanswered`]); it ends by its deadline. Never decides what an unknown
//! outcome means: that is its caller's.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, IF_MATCH, LOCATION};
use http::{HeaderMap, HeaderValue, Method};

use super::addresses::base_url;
use super::transport::header;
use super::{CallError, Client, Failure, Incoming, Outgoing, Problem};
use crate::api;
use crate::runtime::{Instant, now, sleep};

/// Redirects in a row that are followed at once; further ones wait like a failure.
const REDIRECTS_MAX: u32 = 3;
/// Less time than this is not worth another attempt.
const ATTEMPT_FLOOR: Duration = Duration::from_millis(2);

/// One request, the same in every attempt.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) key: Option<String>,
    pub(super) body: Bytes,
    /// Under what its leader is remembered (the item).
    pub(super) route: Option<String>,
    /// The revision that it holds for.
    pub(super) if_match: Option<u64>,
}

impl Ask {
    pub(super) fn new(method: Method, path: &str, key: Option<&str>, body: Bytes) -> Ask {
        let route = path
            .strip_prefix("/v1/items/")
            .and_then(|rest| rest.split(['/', '?']).next())
            .map(str::to_owned);
        Ask {
            method,
            path: path.to_owned(),
            key: key.map(str::to_owned),
            body,
            route,
            if_match: None,
        }
    }
}

/// How the attempts ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// 2xx.
    Answered(Incoming),
    /// A definite no about the last attempt.
    Refused(Problem),
    /// The deadline came; what the last attempt met.
    OutOfTime(String),
    /// The request cannot be sent at all.
    Invalid(String),
}

/// How the attempts ended, and whether an earlier one may still take effect.
#[derive(Debug)]
pub(super) struct Driven {
    pub(super) ended: Ended,
    pub(super) unanswered: bool,
}

/// What one attempt came to.
enum Attempt {
    Done(Ended),
    Elsewhere(String),
    Again {
        last: String,
        pause: Option<Duration>,
        unanswered: bool,
    },
    /// Nobody listens there.
    Unreachable(String),
}

impl Client {
    /// Repeats `ask` until it is answered or refused, or `until` has come.
    pub(super) async fn drive(&self, ask: &Ask, until: Instant) -> Driven {
        let config = &self.shared.config;
        let patience = config.unreachable_within;
        let (mut unanswered, mut redirects, mut failures) = (false, 0, 0_u32);
        let mut node = self.shared.addresses.first(ask.route.as_deref());
        let mut last = "the deadline left no time for an attempt".to_owned();
        let (begun, mut reached) = (now(), false);
        loop {
            let at = now();
            if at + ATTEMPT_FLOOR > until {
                return Driven { ended: Ended::OutOfTime(last), unanswered };
            }
            let attempt_until = until.min(at + config.attempt_within);
            match self.attempt(ask, &node, attempt_until, until).await {
                Attempt::Done(ended) => return Driven { ended, unanswered },
                Attempt::Unreachable(words) if !reached && now() - begun >= patience => {
                    return Driven { ended: Ended::OutOfTime(words), unanswered };
                }
                Attempt::Unreachable(words) => {
                    last = words;
                    node = self.shared.addresses.after_failure_of(&node);
                }
                Attempt::Elsewhere(leader) if redirects < REDIRECTS_MAX => {
                    reached = true;
                    redirects += 1;
                    last = format!("redirected to {leader}");
                    self.shared.addresses.learn(ask.route.as_deref(), &leader);
                    node = leader;
                    continue;
                }
                Attempt::Elsewhere(leader) => {
                    last = format!("redirected in circles, last to {leader}");
                    node = self.shared.addresses.after_failure_of(&node);
                }
                Attempt::Again { last: words, pause, unanswered: this_one } => {
                    reached = true;
                    unanswered |= this_one;
                    last = words;
                    node = self.shared.addresses.after_failure_of(&node);
                    if let Some(pause) = pause {
                        self.wait(pause.min(config.backoff_max), until).await;
                    }
                }
            }
            redirects = 0;
            let (first, max) = (config.backoff_first, config.backoff_max);
            self.wait(self.shared.dice.pause(failures, first, max), until).await;
            failures += 1;
        }
    }

    async fn wait(&self, pause: Duration, until: Instant) {
        let at = now();
        if at < until {
            sleep(pause.min(until - at)).await;
        }
    }

    async fn attempt(&self, ask: &Ask, node: &str, until: Instant, overall: Instant) -> Attempt {
        let headers = match self.headers(ask, until, overall) {
            Ok(headers) => headers,
            Err(e) => return Attempt::Done(Ended::Invalid(e.to_string())),
        };
        let request = Outgoing {
            method: ask.method.clone(),
            node: node.to_owned(),
            path: ask.path.clone(),
            headers,
            body: ask.body.clone(),
        };
        // The server answers by the deadline that it was told; its answer needs time to travel.
        match self.shared.transport.send(request, until + GRACE).await {
            Err(Failure::NotSent(words)) => Attempt::Unreachable(format!("{node}: {words}")),
            Err(Failure::Unanswered(words)) => {
                Attempt::Again { last: format!("{node}: {words}"), pause: None, unanswered: true }
            }
            Ok(answer) => self.judge(ask, node, answer),
        }
    }

    fn judge(&self, ask: &Ask, node: &str, answer: Incoming) -> Attempt {
        if answer.status.is_redirection() {
            let leader = answer.headers.get(LOCATION).and_then(|value| value.to_str().ok());
            return match leader.map(base_url) {
                Some(Ok(leader)) => Attempt::Elsewhere(leader),
                Some(Err(_)) | None => Attempt::Again {
                    last: format!("{node}: a redirect without an address"),
                    pause: None,
                    unanswered: false,
                },
            };
        }
        if let Some(leader) = answer.header(api::HEADER_LEADER) {
            self.shared.addresses.learn(ask.route.as_deref(), leader);
        }
        if answer.status.is_success() {
            return Attempt::Done(Ended::Answered(answer));
        }
        let problem = Problem::read(&answer);
        let unanswered = problem.outcome_unknown();
        if unanswered || problem.nothing_taken_yet() {
            // A shard that has lost its leader has another within the second that `Retry-After`
            // can say at least; the backoff is the better guess.
            let waits = problem.slug != "item-paused";
            let pause = problem.retry_after_s.filter(|_| waits).map(Duration::from_secs);
            return Attempt::Again { last: format!("{node}: {problem}"), pause, unanswered };
        }
        Attempt::Done(Ended::Refused(problem))
    }

    fn headers(&self, ask: &Ask, until: Instant, overall: Instant) -> Result<HeaderMap, CallError> {
        let mut headers = HeaderMap::new();
        let at = now();
        let left_ms = |moment: Instant| {
            let left = if moment > at { moment - at } else { Duration::ZERO };
            u64::try_from(left.as_millis()).unwrap_or(u64::MAX).clamp(1, api::DEADLINE_MS_MAX)
        };
        headers.insert(DEADLINE_MS, HeaderValue::from(left_ms(until)));
        // The operation's one deadline, the same in every copy. A server that knows this header
        // proposes no copy that arrives after it; the client's safety does not rest on that.
        let at_ms = self.shared.wall.now().0.saturating_add(left_ms(overall));
        headers.insert(DEADLINE_AT, HeaderValue::from(at_ms));
        if !ask.body.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(key) = &ask.key {
            headers.insert(KEY, header(key)?);
        }
        if let Some(revision) = ask.if_match {
            headers.insert(IF_MATCH, header(&format!("\"{revision}\""))?);
        }
        if let Some(tenant) = &self.shared.config.tenant {
            headers.insert(TENANT, header(tenant)?);
        }
        Ok(headers)
    }
}

/// How much longer than the server the client waits for an answer.
const GRACE: Duration = Duration::from_millis(50);
const DEADLINE_MS: HeaderName = HeaderName::from_static(api::HEADER_DEADLINE);
const DEADLINE_AT: HeaderName = HeaderName::from_static("holdfast-deadline-at");
const KEY: HeaderName = HeaderName::from_static(api::HEADER_KEY);
const TENANT: HeaderName = HeaderName::from_static(api::HEADER_TENANT);
