//! One part of a request's way.

use std::{borrow::Cow, fmt, time::SystemTime};

use lockstep_types::TraceContext;
use opentelemetry::{
    Context, KeyValue, Value,
    trace::{Span as _, Status, TraceContextExt, Tracer as _},
};
use opentelemetry_sdk::trace::{SdkTracer, Span as SdkSpan};

use crate::context;

/// A sampled span. It ends when dropped, and then waits to be exported.
pub struct Span {
    span: SdkSpan,
    tracer: SdkTracer,
}

impl Span {
    pub(crate) fn new(span: SdkSpan, tracer: SdkTracer) -> Self {
        Self { span, tracer }
    }

    /// A part of this span that begins now.
    pub fn child(&self, name: impl Into<Cow<'static, str>>) -> Self {
        self.child_by(&self.tracer, name.into(), None)
    }

    /// A part of this span that began at `start`.
    pub fn child_since(&self, name: impl Into<Cow<'static, str>>, start: SystemTime) -> Self {
        self.child_by(&self.tracer, name.into(), Some(start))
    }

    pub(crate) fn child_by(
        &self,
        tracer: &SdkTracer,
        name: Cow<'static, str>,
        start: Option<SystemTime>,
    ) -> Self {
        let parent = Context::new().with_remote_span_context(self.span.span_context().clone());
        let mut builder = tracer.span_builder(name);
        builder.start_time = start;
        Self::new(tracer.build_with_context(builder, &parent), tracer.clone())
    }

    /// Adds an attribute. A second value of a name stands beside the first.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.span.set_attribute(KeyValue::new(name, value));
    }

    /// Adds an event that happens now.
    pub fn event<V: Into<Value>>(
        &mut self,
        name: &'static str,
        about: impl IntoIterator<Item = (&'static str, V)>,
    ) {
        let about = about.into_iter();
        let about = about.map(|(name, value)| KeyValue::new(name, value));
        self.span.add_event(name, about.collect());
    }

    /// Changes the name.
    pub fn rename(&mut self, name: impl Into<Cow<'static, str>>) {
        self.span.update_name(name);
    }

    /// Marks the span as failed, with the reason.
    pub fn fail(&mut self, why: impl Into<Cow<'static, str>>) {
        self.span.set_status(Status::error(why));
    }

    /// Ends the span at `time` instead of now.
    pub fn end_at(mut self, time: SystemTime) {
        self.span.end_with_timestamp(time);
    }

    /// The span's place in the trace, for the process where the request goes on.
    pub fn context(&self) -> TraceContext {
        context::write(self.span.span_context())
    }

    /// The trace's id, 32 hexadecimal digits, for log lines.
    pub fn trace_id(&self) -> String {
        self.span.span_context().trace_id().to_string()
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Span").field(&self.context().parent).finish()
    }
}
