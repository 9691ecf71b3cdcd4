//! `GET /metrics`: the metrics, in the format that the client prefers.

use http::Response;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};

use crate::listeners::response_body::ResponseBody;
use crate::metrics::Metrics;
use crate::metrics::exposition::ExpositionFormat;

pub(super) fn page(metrics: &Metrics, headers: &HeaderMap) -> Response<ResponseBody> {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = preferred(accept);
    let mut response = Response::new(ResponseBody::from(metrics.page(format)));
    let content_type = HeaderValue::from_static(format.content_type());
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// OpenMetrics if the client names it and prefers no other format, else text.
fn preferred<'a>(accept: impl Iterator<Item = &'a str>) -> ExpositionFormat {
    let (mut open, mut text) = (0, 0);
    for range in accept.flat_map(|list| list.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let (mut weight, mut version) = (1_000, None);
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match &*name.trim().to_ascii_lowercase() {
                "q" => weight = thousandths(value.trim()),
                "version" => version = Some(value.trim().trim_matches('"')),
                _ => {}
            }
        }
        match &*kind {
            "application/openmetrics-text" if matches!(version, None | Some("1.0.0")) => {
                open = open.max(weight);
            }
            "text/plain" if matches!(version, None | Some("0.0.4")) => text = text.max(weight),
            _ => {}
        }
    }
    if open > 0 && open >= text { ExpositionFormat::OpenMetrics } else { ExpositionFormat::Text }
}

/// Reads a weight such as `0.75`; an invalid one is 0.
fn thousandths(weight: &str) -> u32 {
    let weight: f32 = weight.parse().unwrap_or(0.0);
    // NaN becomes 0 too.
    (weight.clamp(0.0, 1.0) * 1_000.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reader_chooses_the_format() {
        let prometheus_2 = "application/openmetrics-text;version=1.0.0;q=0.8,\
            application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,\
            text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        let text_only = "text/plain;version=0.0.4;q=1,*/*;q=0.1";
        let rows: [(&[&str], ExpositionFormat); 13] = [
            (&[], ExpositionFormat::Text),
            (&["*/*"], ExpositionFormat::Text),
            (&["text/html,application/xhtml+xml,*/*;q=0.8"], ExpositionFormat::Text),
            (&[prometheus_2], ExpositionFormat::OpenMetrics),
            (&[prometheus_3], ExpositionFormat::OpenMetrics),
            (&[text_only], ExpositionFormat::Text),
            (&["application/openmetrics-text"], ExpositionFormat::OpenMetrics),
            (
                &["Application/OpenMetrics-Text; Version=\"1.0.0\" ; Q=0.1"],
                ExpositionFormat::OpenMetrics,
            ),
            (&["application/openmetrics-text;version=2.0.0"], ExpositionFormat::Text),
            (&["application/openmetrics-text;q=0"], ExpositionFormat::Text),
            (&["application/openmetrics-text;q=nan"], ExpositionFormat::Text),
            (&["application/openmetrics-text;q=0.4, text/plain;q=0.5"], ExpositionFormat::Text),
            (&["text/plain", "application/openmetrics-text"], ExpositionFormat::OpenMetrics),
        ];
        for (accept, want) in rows {
            assert_eq!(preferred(accept.iter().copied()), want, "{accept:?}");
        }
    }
}
