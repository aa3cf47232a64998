//! The door: accepts connections, reads each one's hello with a bound and a deadline on a task of
//! its own, and hands those that belong here to the runtime that the service chose.
//!
//! Silent, slow and foreign callers cost one bounded slot each and never stand in anybody's way:
//! when too many have not said hello yet, the oldest of them goes.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Inner;
use super::counters::add;
use super::frame::FrameError;
use super::greeting::{self, Greeted};
use super::hello::Hello;
use super::service::{Opened, Replies, Service};
use super::serving::Serving;
use super::stop::Stop;
use super::transport::{self, Acceptor, Socket};
use crate::runtime;

/// The pause after a failed accept, for instance when the process has no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A bound address. Dropping it closes it.
pub struct Listener {
    door: Arc<Door>,
    local: String,
}

/// What a listener, its accepting task and its connections share.
struct Door {
    network: Arc<Inner>,
    service: Arc<dyn Service>,
    stop: Stop,
    seats: Mutex<Seats>,
    released: AtomicBool,
    release: Notify,
    /// Why the last connection was refused: said once, not at every attempt.
    refused: Mutex<Option<String>>,
}

/// The connections of one listener.
#[derive(Default)]
struct Seats {
    next: u64,
    greeting: BTreeMap<u64, Arc<Stop>>,
    open: BTreeMap<u64, Arc<Replies>>,
}

impl Listener {
    /// Binds `addr` and begins to accept on this thread's runtime.
    ///
    /// # Errors
    ///
    /// When the address cannot be bound.
    pub(super) async fn bind(
        network: Arc<Inner>,
        addr: &str,
        service: Arc<dyn Service>,
    ) -> io::Result<Listener> {
        let acceptor = transport::bind(&network.transport, addr).await?;
        let local = acceptor.local_addr()?;
        let door = Arc::new(Door {
            network,
            service,
            stop: Stop::default(),
            seats: Mutex::default(),
            released: AtomicBool::new(false),
            release: Notify::new(),
            refused: Mutex::default(),
        });
        drop(runtime::spawn(accept(Arc::clone(&door), acceptor)));
        Ok(Listener { door, local })
    }

    /// Returns the address that was bound, with the port that the system chose for port 0.
    pub fn local_addr(&self) -> &str {
        &self.local
    }

    /// Stops accepting and ends every connection that was accepted.
    pub fn close(&self) {
        self.door.stop.say();
        let (greeting, open) = {
            let mut seats = self.door.seats.lock();
            (std::mem::take(&mut seats.greeting), seats.open.values().cloned().collect::<Vec<_>>())
        };
        greeting.values().for_each(|stop| stop.say());
        open.iter().for_each(|replies| replies.close());
    }

    /// Waits until the address is free again after [`close`](Listener::close).
    pub async fn released(&self) {
        let waiting = self.door.release.notified();
        if !self.door.released.load(Ordering::Acquire) {
            waiting.await;
        }
    }

    /// Returns how many accepted connections are open, those without a hello not counted.
    pub fn connections(&self) -> usize {
        self.door.seats.lock().open.len()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

/// Tells that the address is free, however the accepting task ends.
struct Release(Arc<Door>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.released.store(true, Ordering::Release);
        self.0.release.notify_waiters();
    }
}

async fn accept(door: Arc<Door>, acceptor: Acceptor) {
    // Dropped in this order: the acceptor first, then the word that it is gone.
    let _release = Release(Arc::clone(&door));
    let mut acceptor = acceptor;
    while let Some(accepted) = door.stop.or(acceptor.accept()).await {
        match accepted {
            Ok(socket) => {
                if let Some((number, stop)) = door.admit() {
                    let door = Arc::clone(&door);
                    drop(runtime::spawn(async move {
                        let greeted = stop.or(greet(&door, number, socket)).await;
                        door.seats.lock().greeting.remove(&number);
                        if greeted.is_none() {
                            add(&door.network.counters.silent, 1);
                        }
                    }));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                if door.stop.or(runtime::sleep(ACCEPT_PAUSE)).await.is_none() {
                    return;
                }
            }
        }
    }
}

impl Door {
    /// Finds a place for a new connection; `None` when there is none.
    fn admit(&self) -> Option<(u64, Arc<Stop>)> {
        let limits = &self.network.limits;
        let mut seats = self.seats.lock();
        if seats.open.len() >= limits.accepted_max || self.stop.was_said() {
            add(&self.network.counters.crowded_out, 1);
            return None;
        }
        if seats.greeting.len() >= limits.handshakes_max
            && let Some((_, oldest)) = seats.greeting.pop_first()
        {
            oldest.say();
        }
        let number = seats.next;
        seats.next += 1;
        let stop = Arc::new(Stop::default());
        seats.greeting.insert(number, Arc::clone(&stop));
        Some((number, stop))
    }

    /// Gives a connection whose hello was accepted its seat; `None` once the door is closed or
    /// full.
    fn seat(self: &Arc<Self>, number: u64, hello: &Hello) -> Option<Seat> {
        let limits = &self.network.limits;
        let replies = Arc::new(Replies::new(limits.frame_bytes_max.of(hello.lane)));
        let mut seats = self.seats.lock();
        if self.stop.was_said() || seats.open.len() >= limits.accepted_max {
            return None;
        }
        seats.open.insert(number, Arc::clone(&replies));
        drop(seats);
        Some(Seat { door: Arc::clone(self), number, replies })
    }
}

/// A connection's place among those of its listener.
pub(super) struct Seat {
    door: Arc<Door>,
    number: u64,
    replies: Arc<Replies>,
}

impl Seat {
    /// Returns the connection's answers.
    pub(super) fn replies(&self) -> &Arc<Replies> {
        &self.replies
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.door.seats.lock().open.remove(&self.number);
    }
}

async fn greet(door: &Arc<Door>, number: u64, mut socket: Socket) {
    let network = &door.network;
    let limit = network.limits.handshake_timeout;
    let greeted = match runtime::timeout(limit, greeting::receive(&mut socket, network)).await {
        Err(_) => {
            add(&network.counters.silent, 1);
            return;
        }
        Ok(greeted) => greeted,
    };
    let opened = match greeted {
        Err(error) => {
            refuse_bytes(network, &error);
            return;
        }
        Ok(Greeted::Stranger(reason)) => Err(reason),
        Ok(Greeted::Hello(hello)) => door.service.open(&hello).map(|opened| (hello, opened)),
    };
    match opened {
        Ok((hello, opened)) => {
            if let Some(seat) = door.seat(number, &hello) {
                hand_over(network, hello, seat, opened, socket);
            }
        }
        Err(reason) => {
            add(&network.counters.refused, 1);
            let said = door.refused.lock().replace(reason.clone());
            if said.as_ref() == Some(&reason) {
                tracing::debug!(%reason, "a connection was refused");
            } else {
                tracing::warn!(%reason, "connections are refused");
            }
            // The refusal is a courtesy; a peer that does not take it is gone all the same.
            let _ = runtime::timeout(limit, greeting::turn_away(&mut socket, &reason)).await;
        }
    }
}

fn refuse_bytes(network: &Inner, error: &FrameError) {
    if error.is_bad_input() {
        add(&network.counters.bad_frames, 1);
        tracing::warn!(%error, "a connection that is no peer's");
    } else {
        tracing::debug!(%error, "a connection left before its hello");
    }
}

/// Moves a connection to the runtime that the service chose.
fn hand_over(network: &Arc<Inner>, hello: Hello, seat: Seat, opened: Opened, socket: Socket) {
    let Opened { conversation, spawner } = opened;
    let serving = Serving::new(Arc::clone(network), hello, seat, conversation);
    match socket.park() {
        Ok(parked) => spawner(Box::pin(async move {
            match parked.unpark() {
                Ok(socket) => serving.run(socket).await,
                Err(error) => tracing::warn!(%error, "a connection could not change its runtime"),
            }
        })),
        Err(error) => tracing::warn!(%error, "a connection could not leave its runtime"),
    }
}
