//! Serves one HTTP thread: accepts, bounds and watches connections, and stops in bounded time.
//!
//! It promises: a client that is silent, dribbles a head, or does not read its answer is closed
//! within twice the limit that it broke; an idle connection within its own limit; a message whose
//! length is ambiguous, or that does not name its host as RFC 9112 demands, is answered 400 and
//! closed; what cannot be read as a request is answered with a problem too (`watched.rs`); a
//! request that may change something runs to its end once it was sent whole, whether or not its
//! client still listens; a client that has only ended its own sending reads its answer; a stop
//! answers what is in flight, and is over after [`Limits::drain_max`]. (A dribbled body is the
//! business of the calls, which also run without this file.) hyper's own header timeout is not
//! used: it re-arms a timer for every request and knows no difference between a slow head and an
//! idle connection.

use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::{Method, Version, header};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tower::Service;

use super::Limits;
pub use super::count::Connections;
use super::count::Place;
use super::problem::Failure;
use super::watched::Watched;
use crate::api::{Problem, ProblemKind};
use crate::runtime::{self, Instant};

/// Connections that are told 503 at the same time; more are closed without a word.
const TURNED_AWAY_MAX: usize = 64;
/// How long a connection that is turned away may take to read why.
const TURN_AWAY_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after an error of `accept` that is the machine's (no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What the connections are told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Answer what is in flight, then close.
    Draining,
    /// Close now.
    Closing,
}

/// Serves `router` on `listener` until `shutdown` is done and what was in flight is answered, on
/// the single-threaded tokio runtime that calls it. `connections` is shared by the threads of a
/// node: `front.connections()`.
///
/// # Errors
///
/// The listener's, when the runtime cannot take it.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    connections: Connections,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let limits = Arc::new(limits);
    let turned_away = Arc::new(AtomicUsize::new(0));
    let (phase, _) = watch::channel(Phase::Serving);
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) if of_one_connection(&error) => continue,
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections");
                runtime::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match connections.enter(limits.connections_max) {
            Some(place) => {
                let (router, limits) = (router.clone(), limits.clone());
                let told = phase.subscribe();
                drop(runtime::spawn(connection(stream, router, limits, place, told)));
            }
            None if turned_away.fetch_add(1, Ordering::Relaxed) < TURNED_AWAY_MAX => {
                let turned_away = turned_away.clone();
                drop(runtime::spawn(async move {
                    let _ = runtime::timeout(TURN_AWAY_TIMEOUT, turn_away(stream)).await;
                    turned_away.fetch_sub(1, Ordering::Relaxed);
                }));
            }
            None => {
                turned_away.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
    drop(listener);
    phase.send_replace(Phase::Draining);
    if runtime::timeout(limits.drain_max, phase.closed()).await.is_err() {
        tracing::warn!("closing connections whose requests did not end in time");
        phase.send_replace(Phase::Closing);
        phase.closed().await;
    }
    Ok(())
}

/// Whether an error of `accept` speaks of the connection that came, not of the machine.
fn of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// Tells a client that there are too many, so that it can read it, and closes.
async fn turn_away(mut stream: TcpStream) {
    let problem = Problem::new(
        ProblemKind::Overloaded,
        "This node has as many connections as it takes; nothing was taken. Use fewer connections, \
         or another node, and retry with the same key.",
    );
    let _ =
        stream.write_all(&last_words(&problem, "Service Unavailable", "retry-after: 1\r\n")).await;
    let _ = stream.shutdown().await;
    // Closing with unread bytes would reset the connection and lose the answer.
    let mut rest = [0u8; 1_024];
    while matches!(stream.read(&mut rest).await, Ok(n) if n > 0) {}
}

/// A whole response that tells of a problem and closes the connection.
pub(super) fn last_words(problem: &Problem, reason: &str, more: &str) -> Vec<u8> {
    let body = serde_json::to_string(problem).unwrap_or_default();
    let (status, length) = (problem.status, body.len());
    let kind = "content-type: application/problem+json\r\n";
    let head = format!("HTTP/1.1 {status} {reason}\r\n{kind}{more}connection: close\r\n");
    format!("{head}content-length: {length}\r\n\r\n{body}").into_bytes()
}

async fn connection(
    stream: TcpStream,
    router: Router,
    limits: Arc<Limits>,
    place: Place,
    mut told: watch::Receiver<Phase>,
) {
    let _ = stream.set_nodelay(true);
    let pulse = Arc::new(Pulse::new());
    let io = TokioIo::new(Watched::new(stream, pulse.clone(), limits.head_bytes_max));
    let service = {
        let stay = Arc::new(Stay { _place: place, told: told.clone() });
        let pulse = pulse.clone();
        service_fn(move |request: hyper::Request<Incoming>| {
            answer(router.clone(), pulse.clone(), stay.clone(), request)
        })
    };
    let mut builder = http1::Builder::new();
    // A client may end its sending and still read: that alone says nothing against its request.
    builder.half_close(true);
    builder.header_read_timeout(None).max_buf_size(limits.head_bytes_max.max(8_192));
    let mut serving = pin!(builder.serve_connection(io, service));
    let mut check = runtime::now() + step(&limits);
    loop {
        tokio::select! {
            ended = serving.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                }
                return;
            }
            changed = told.changed() => {
                let phase = *told.borrow_and_update();
                if changed.is_err() || phase == Phase::Closing {
                    return;
                }
                serving.as_mut().graceful_shutdown();
                if pulse.quiet() {
                    return;
                }
            }
            () = runtime::sleep_until(check) => match pulse.judge(&limits) {
                Ok(wait) => check = runtime::now() + wait,
                Err(why) => {
                    tracing::debug!(why, "closing a connection");
                    return;
                }
            },
        }
    }
}

/// A connection's place among the others, kept as long as it, or the work that it asked for, is
/// there: whoever sends and goes away again and again does not get more work done at a time.
struct Stay {
    _place: Place,
    told: watch::Receiver<Phase>,
}

impl Stay {
    /// Waits until the server closes what is left.
    async fn closing(&self) {
        let mut told = self.told.clone();
        let closes = told.wait_for(|phase| *phase == Phase::Closing).await.is_ok();
        tracing::debug!(closes, "work of a connection was cut off");
    }
}

async fn answer(
    mut router: Router,
    pulse: Arc<Pulse>,
    stay: Arc<Stay>,
    request: hyper::Request<Incoming>,
) -> io::Result<Response> {
    let chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
    if pulse.begin() && chunked {
        let failure = Failure::malformed(
            "The length is ambiguous: send Content-Length or Transfer-Encoding, not both.",
        );
        pulse.end();
        return Ok(failure.closing().into_response(request.uri()));
    }
    if let Some(words) = host_fault(&request) {
        pulse.end();
        return Ok(Failure::malformed(words).closing().into_response(request.uri()));
    }
    let answered = if changes(request.method()) {
        // A task of its own: the end of the connection must not end the change half-way. A body
        // that breaks off is an error to whoever reads it there, too.
        let work = runtime::spawn(async move {
            tokio::select! {
                biased;
                answered = router.call(request) => Some(answered),
                () = stay.closing() => None,
            }
        });
        let ended = || io::Error::other("the work on a request ended without an answer");
        work.await.ok().flatten().ok_or_else(ended)?
    } else {
        router.call(request).await
    };
    pulse.end();
    Ok(answered.unwrap_or_else(|never| match never {}))
}

/// Says what is wrong with how a request names its host: one of HTTP/1.1 does so in exactly one
/// `Host`, which holds a host and perhaps a port, and may be empty (RFC 9112 §3.2). A message that
/// two servers would send to two hosts must not get further.
fn host_fault(request: &hyper::Request<Incoming>) -> Option<&'static str> {
    let mut named = request.headers().get_all(header::HOST).iter();
    match (named.next(), named.next()) {
        (None, _) if request.version() == Version::HTTP_11 => Some("The header Host is missing."),
        (Some(_), Some(_)) => Some("There is more than one Host: send one."),
        (Some(host), None) if !host.as_bytes().iter().all(|byte| may_name_a_host(*byte)) => {
            Some("Host is not the name of a host, with or without a port.")
        }
        (None | Some(_), None) | (None, Some(_)) => None,
    }
}

/// Whether a byte may stand in `uri-host [":" port]` (RFC 3986 §3.2.2).
fn may_name_a_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(&byte)
}

/// Tells whether a request with this method may change something.
fn changes(method: &Method) -> bool {
    *method != Method::GET && *method != Method::HEAD && *method != Method::OPTIONS
}

/// What a connection last did.
pub(super) struct Pulse {
    born: Instant,
    in_flight: AtomicU32,
    requests: AtomicU64,
    /// Ms since birth; 0 says that it is not so.
    head_since: AtomicU64,
    idle_since: AtomicU64,
    write_blocked_since: AtomicU64,
    /// Whether a `Content-Length` was seen since the last request began. hyper takes a head with
    /// both lengths, drops this one and tells nobody, so we look for it ourselves.
    saw_length: AtomicBool,
}

impl Pulse {
    fn new() -> Pulse {
        Pulse {
            born: runtime::now(),
            in_flight: AtomicU32::new(0),
            requests: AtomicU64::new(0),
            head_since: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
            write_blocked_since: AtomicU64::new(0),
            saw_length: AtomicBool::new(false),
        }
    }

    fn now(&self) -> u64 {
        let ms = (runtime::now() - self.born).as_millis();
        u64::try_from(ms).unwrap_or(u64::MAX).max(1)
    }

    pub(super) fn read(&self, bytes: &[u8]) {
        if self.in_flight.load(Ordering::Relaxed) == 0
            && self.head_since.load(Ordering::Relaxed) == 0
        {
            self.head_since.store(self.now(), Ordering::Relaxed);
        }
        if names_a_length(bytes) {
            self.saw_length.store(true, Ordering::Relaxed);
        }
    }

    /// A request begins; tells whether a `Content-Length` came with it.
    fn begin(&self) -> bool {
        self.in_flight.store(1, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.saw_length.swap(false, Ordering::Relaxed)
    }

    fn end(&self) {
        self.in_flight.store(0, Ordering::Relaxed);
        self.idle_since.store(self.now(), Ordering::Relaxed);
    }

    pub(super) fn wrote(&self, blocked: bool) {
        if !blocked {
            self.write_blocked_since.store(0, Ordering::Relaxed);
        } else if self.write_blocked_since.load(Ordering::Relaxed) == 0 {
            self.write_blocked_since.store(self.now(), Ordering::Relaxed);
        }
    }

    /// Whether nothing is being answered or waits to be read by the client.
    fn quiet(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) == 0
            && self.write_blocked_since.load(Ordering::Relaxed) == 0
    }

    /// How long until it must be judged again, or why the connection is to be closed.
    fn judge(&self, limits: &Limits) -> Result<Duration, &'static str> {
        let now = self.now();
        let age = |since: u64| Duration::from_millis(now.saturating_sub(since));
        let blocked = self.write_blocked_since.load(Ordering::Relaxed);
        if blocked > 0 && age(blocked) >= limits.write_timeout {
            return Err("the client does not read its answer");
        }
        let step = step(limits);
        if self.in_flight.load(Ordering::Relaxed) > 0 {
            return Ok(step);
        }
        let head = self.head_since.load(Ordering::Relaxed);
        let (since, limit, why) = if head > 0 {
            (head, limits.header_timeout, "the head came too slowly")
        } else if self.requests.load(Ordering::Relaxed) == 0 {
            (0, limits.header_timeout, "the client is silent")
        } else {
            let idle = self.idle_since.load(Ordering::Relaxed);
            (idle, limits.idle_timeout, "the connection is idle")
        };
        match limit.checked_sub(age(since)) {
            Some(left) if !left.is_zero() => Ok(left.min(step)),
            Some(_) | None => Err(why),
        }
    }
}

/// How long a connection goes without being judged: what it may break soonest.
fn step(limits: &Limits) -> Duration {
    limits.header_timeout.min(limits.write_timeout).max(Duration::from_millis(1))
}

/// Whether the bytes have the name of the header `Content-Length`, in any case.
fn names_a_length(bytes: &[u8]) -> bool {
    const NAME: &[u8] = b"content-length";
    const DASH: usize = 7;
    bytes.iter().enumerate().filter(|(_, byte)| **byte == b'-').any(|(at, _)| {
        at.checked_sub(DASH)
            .and_then(|from| bytes.get(from..from + NAME.len()))
            .is_some_and(|name| name.eq_ignore_ascii_case(NAME))
    })
}
