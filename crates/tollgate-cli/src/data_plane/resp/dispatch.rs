//! One command: who obeys it, and who may give it.

use tollgate::Check;

use super::RespListener;
use super::batch::{self, Added, Batch};
use super::commands::{self, Command, unknown_command, wrong_number};
use super::figures::Trouble;
use super::reply::Replies;
use super::request::Args;
use super::rules::{self, Asked};
use super::session::{self, Session};
use super::talk::Talk;
use super::throttle::{self, Throttle};

/// What a browser says that was made to talk to this port: what else it says must not be obeyed.
const OF_BROWSERS: [&[u8]; 2] = [b"host:", b"post"];

impl Talk<'_> {
    /// Obeys the command that was found last. Its reply waits afterwards, if the client wants one.
    pub(super) async fn command(&mut self) {
        self.session.begin_reply(&mut self.replies);
        self.reply().await;
        self.replies.end_muted();
        if self.session.was_wrong {
            self.listener.figures.trouble(Trouble::Auth);
            let (peer, now) = (self.session.by().peer, self.listener.gatekeeper.now());
            self.listener.audit.wrong_token(peer, now);
        }
    }

    async fn reply(&mut self) {
        let args = self.parser.args(self.input.unread());
        let (listener, replies, session) = (self.listener, &mut self.replies, &mut self.session);
        let name = args.get(0).unwrap_or_default();
        session.was_wrong = false;
        let Some(command) = Command::of(name) else {
            listener.figures.commands(None, 1);
            session.leaves = OF_BROWSERS.iter().any(|word| name.eq_ignore_ascii_case(word));
            if session.is_in_transaction() && !session.leaves {
                listener.figures.trouble(Trouble::Command);
                session.refuse_in_transaction(replies);
            } else if !session.leaves {
                listener.figures.trouble(Trouble::Command);
                unknown_command(args, replies);
            }
            return;
        };
        if command != Command::Throttle {
            listener.figures.commands(Some(command), 1);
        }
        if session.is_in_transaction() && !command.is_of_transactions() {
            if command == Command::Throttle {
                listener.figures.commands(Some(command), 1);
            }
            listener.figures.trouble(Trouble::Command);
            return session.refuse_in_transaction(replies);
        }
        if !command.takes(args.len()) {
            listener.figures.trouble(Trouble::Command);
            return wrong_number(command.described().name, replies);
        }
        if !session.admitted && !command.is_for_strangers() {
            listener.figures.trouble(Trouble::Auth);
            return Session::refuse_stranger(replies);
        }
        let tokens = listener.tokens.as_deref();
        match command {
            Command::Multi | Command::Exec | Command::Discard => session.transact(command, replies),
            Command::Throttle => throttle_one(listener, &mut self.batch, args, replies).await,
            Command::Check => check(listener, args, false, replies).await,
            Command::Peek => check(listener, args, true, replies).await,
            Command::ResetKey => rules::reset(listener, args, session.by(), replies).await,
            Command::Ping => match (args.get(1), args.len()) {
                (None, _) => replies.simple("PONG"),
                (Some(text), 2) => replies.bulk(text),
                _ => wrong_number("ping", replies),
            },
            Command::Echo => replies.bulk(args.get(1).unwrap_or_default()),
            Command::Hello => session.hello(args, tokens, replies),
            Command::Auth => session.auth(args, tokens, replies),
            Command::Client => session.client(args, replies),
            Command::Select => session::select(args.get(1).unwrap_or_default(), replies),
            Command::Commands => commands::command(args, replies),
            Command::Info => session::info(args, replies),
            Command::Config => session::config(args, replies),
            Command::Quit => {
                session.leaves = true;
                replies.ok();
            }
            Command::Reset => session.reset(tokens, replies),
            Command::Cluster | Command::ReadOnly | Command::ReadWrite | Command::Asking => {
                replies.error("ERR This instance has cluster support disabled");
            }
        }
    }
}

/// A call of `CL.THROTTLE` that was not put together with others: it was wrong, or came as a line, or
/// there was no room for it before.
async fn throttle_one(
    listener: &RespListener,
    batch: &mut Batch,
    args: Args<'_>,
    replies: &mut Replies,
) {
    let call = Throttle::read(args);
    let added = call.as_ref().map_err(|error| *error);
    let added = added.and_then(|call| Ok((call, batch.add(listener, call, args.place(1))?)));
    let reply = match added {
        Ok((_, Added::Waits)) => return batch.decide(listener, args.bytes(), replies).await,
        Ok((_, Added::Full)) => unreachable!("nothing waits"),
        Ok((_, Added::Nothing(reply))) => Ok(reply),
        Ok((call, Added::Alone(limit))) => {
            let check = Check::new(&limit, call.key).cost(call.quantity);
            let decision = batch::decide_alone(listener, &check).await;
            Ok(throttle::reply(limit.capacity(), &decision))
        }
        Ok((call, Added::Beyond(limit))) => {
            let check = Check::new(&limit, call.key).cost(call.quantity);
            let now = listener.gatekeeper.now();
            let decision = listener.book.decide_beyond(&check, listener.gatekeeper.as_read(now));
            listener.audit.too_many_numbers(&listener.figures, now);
            Ok(throttle::reply(limit.capacity(), &decision))
        }
        Err(error) => Err(error),
    };
    match reply {
        Ok(reply) => {
            listener.figures.throttled(u64::from(reply[0] == 0), u64::from(reply[0] == 1));
            replies.five(reply);
        }
        Err(error) => {
            listener.figures.trouble(Trouble::Command);
            replies.error(error);
        }
    }
    listener.figures.commands(Some(Command::Throttle), 1);
}

async fn check(listener: &RespListener, args: Args<'_>, peek: bool, replies: &mut Replies) {
    match Asked::read(args) {
        Ok(asked) => {
            let how = (peek, listener.gatekeeper.now());
            // In a box: it is large, and a connection that does not ask need not carry it.
            let answer = Box::pin(asked.decide(listener, how)).await;
            rules::reply(listener, &answer, replies);
        }
        Err(error) => {
            listener.figures.trouble(Trouble::Command);
            replies.error(error);
        }
    }
}
