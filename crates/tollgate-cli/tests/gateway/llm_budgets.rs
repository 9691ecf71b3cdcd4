//! Budgets of tokens: requests reserve what they may use and pay what they used, so that streams at the same time never
//! exceed a budget. Paying afterwards only, as other gateways do, exceeds it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use testkit::peers::{RawConversation, RawUpstream};
use testkit::wait::until_true;

use super::gateway_process::GatewayProcess;
use super::wire_client::WireClient;

/// Tokens of the budget.
const BUDGET: u64 = 1_000;

/// Tokens that a request allows its answer, as the client writes it.
const MAX_TOKENS: u64 = 100;

/// Tokens that an answer uses.
const USED_TOKENS: u64 = 80;

/// Streams at the same time.
const STREAMS: usize = 50;

/// Form of a provider's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProviderForm {
    OpenAi,
    Anthropic,
}

impl ProviderForm {
    /// The events before the pause of a stream.
    fn first_events(self) -> &'static str {
        match self {
            ProviderForm::OpenAi => {
                "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}],\"usage\":null}\n\n"
            }
            ProviderForm::Anthropic => concat!(
                "event: message_start\ndata: {\"type\":\"message_start\",",
                "\"message\":{\"usage\":{\"input_tokens\":30,\"output_tokens\":1}}}\n\n",
                "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"Hel\"}}\n\n",
            ),
        }
    }

    /// The events after it. They say that the answer used [`USED_TOKENS`].
    fn last_events(self) -> &'static str {
        match self {
            ProviderForm::OpenAi => concat!(
                "data: {\"choices\":[{\"delta\":{\"content\":\"lo\"}}],\"usage\":null}\n\n",
                "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":30,\"completion_tokens\":50,\"total_tokens\":80}}\n\n",
                "data: [DONE]\n\n",
            ),
            ProviderForm::Anthropic => concat!(
                "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":50}}\n\n",
                "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
            ),
        }
    }
}

/// A provider that streams: it pauses in the middle of each answer until it is released.
struct FakeProvider {
    upstream: RawUpstream,
    released: Arc<AtomicBool>,
    /// Tokens of answers that were not given up.
    spent: Arc<AtomicU64>,
}

impl FakeProvider {
    fn start(form: ProviderForm) -> FakeProvider {
        let (released, spent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let upstream = RawUpstream::start({
            let (released, spent) = (released.clone(), spent.clone());
            move |conversation| {
                while conversation.read_request()?.is_some() {
                    stream(conversation, form, &released, &spent)?;
                }
                Ok(())
            }
        });
        FakeProvider { upstream, released, spent }
    }
}

fn stream(
    conversation: &mut RawConversation,
    form: ProviderForm,
    released: &AtomicBool,
    spent: &AtomicU64,
) -> io::Result<()> {
    let head = "content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    conversation.write(format!("HTTP/1.1 200 OK\r\n{head}").as_bytes())?;
    let chunk = |events: &str| format!("{:x}\r\n{events}\r\n", events.len()).into_bytes();
    conversation.write(&chunk(form.first_events()))?;
    until_true("the release", || released.load(Ordering::Relaxed) || conversation.is_stopped());
    // Before the client can see the end.
    spent.fetch_add(USED_TOKENS, Ordering::Relaxed);
    conversation.write(&chunk(form.last_events()))?;
    conversation.write(b"0\r\n\r\n")
}

fn rules(reserve: &str) -> String {
    format!(
        "rules:
  - name: tokens
    key: '{{ip}}'
    limits: [{{ rate: {BUDGET}/day, algorithm: fixed_window }}]
    cost: {{ reserve: {reserve}, actual: '{{response.json.usage.total_tokens}}' }}
"
    )
}

/// Sends a question and returns the client and the status of the answer.
fn ask(gateway: &GatewayProcess) -> (WireClient, u16) {
    let body = format!("{{\"model\":\"m\",\"stream\":true,\"max_tokens\":{MAX_TOKENS}}}");
    let head = "POST /v1/messages HTTP/1.1\r\nhost: app\r\ncontent-type: application/json\r\n";
    let mut client = WireClient::connect(gateway.address());
    client.send(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes());
    let status = client.read_head().expect("an answer").status;
    (client, status)
}

/// Remaining tokens of the budget.
fn remaining(gateway: &GatewayProcess) -> u64 {
    let peek = gateway.server.check(r#"{"ip":"127.0.0.1","cost":0}"#);
    peek["remaining"].as_u64().expect("a limit")
}

/// Opens all streams at once, and returns the tokens that the provider spent on them.
fn tokens_spent(form: ProviderForm, reserve: &str) -> u64 {
    let provider = FakeProvider::start(form);
    let gateway = GatewayProcess::start(provider.upstream.address(), &rules(reserve));
    let streams: Vec<_> = (0..STREAMS).map(|_| ask(&gateway)).collect();
    let admitted = streams.iter().filter(|(_, status)| *status == 200).count() as u64;
    provider.released.store(true, Ordering::Relaxed);
    for (mut client, status) in streams {
        assert!(matches!(status, 200 | 429), "{status}");
        while status == 200 && client.read_chunk().expect("a chunk").is_some() {}
    }
    let spent = provider.spent.load(Ordering::Relaxed);
    assert_eq!(spent, admitted * USED_TOKENS);
    until_true("the settlements", || remaining(&gateway) == BUDGET.saturating_sub(spent));
    spent
}

#[test]
fn reservations_keep_the_budget_that_paying_afterwards_exceeds() {
    for form in [ProviderForm::OpenAi, ProviderForm::Anthropic] {
        let reserved = tokens_spent(form, "'{request.json.max_tokens|2000}'");
        let afterwards = tokens_spent(form, "1");
        eprintln!(
            "{form:?}: {STREAMS} streams at once spend {reserved} of {BUDGET} tokens with reservations, {afterwards} if paid afterwards"
        );
        assert_eq!(reserved, BUDGET / MAX_TOKENS * USED_TOKENS);
        assert!(reserved <= BUDGET);
        assert_eq!(afterwards, STREAMS as u64 * USED_TOKENS);
        assert!(afterwards > BUDGET);
    }
}

/// A client that hangs up in the middle of its answer has paid at least for what it got.
#[test]
fn hanging_up_pays() {
    for form in [ProviderForm::OpenAi, ProviderForm::Anthropic] {
        let provider = FakeProvider::start(form);
        let gateway = GatewayProcess::start(
            provider.upstream.address(),
            &rules("'{request.json.max_tokens|2000}'"),
        );
        for number in 1..=5 {
            let (mut client, status) = ask(&gateway);
            assert_eq!(status, 200);
            client.read_chunk().expect("an event");
            drop(client);
            let paid = |tokens: u64| BUDGET - remaining(&gateway) == number * tokens;
            match form {
                // No usage was seen: the reservation stands.
                ProviderForm::OpenAi => until_true("the payment", || paid(MAX_TOKENS)),
                // 30 tokens in, and one out.
                ProviderForm::Anthropic => until_true("the payment", || paid(31)),
            }
        }
    }
}
