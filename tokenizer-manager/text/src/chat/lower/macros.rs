//! Conversion of macros and call blocks.

use minijinja::machinery::Span;
use minijinja::machinery::ast::{self, CallArg, Expr, Spanned, Stmt};
use minijinja::{Error, Value};

use super::operations as op;
use super::{
    Expression, Lowering, Statement, apply, constant, emit, refused, scope, set, variable,
};
use crate::chat::python::macros::Signature;
use crate::chat::python::tests::MISSING;

/// Special names that a macro uses; a macro has them without declaring them.
#[derive(Debug, Default)]
pub(super) struct Specials {
    caller: bool,
    kwargs: bool,
    varargs: bool,
}

impl Specials {
    pub(super) fn note(&mut self, name: &str) {
        match name {
            "caller" => self.caller = true,
            "kwargs" => self.kwargs = true,
            "varargs" => self.varargs = true,
            _ => {}
        }
    }
}

/// Name of the macro of a call block.
const CALLER: &str = "%caller";

impl Lowering {
    pub(super) fn macro_statement(
        &mut self,
        out: &mut Vec<Statement>,
        declared: &Spanned<ast::Macro<'static>>,
    ) -> Result<(), Error> {
        let name = Some(declared.name.to_owned());
        self.declare(out, declared.name, name, declared)
    }

    /// Adds a macro of the engine, and a value that binds its arguments as Jinja2 does.
    fn declare(
        &mut self,
        out: &mut Vec<Statement>,
        stored: &'static str,
        name: Option<String>,
        declared: &Spanned<ast::Macro<'static>>,
    ) -> Result<(), Error> {
        let span = declared.span();
        let params = params(declared, span)?;
        let plain = params.len() - declared.defaults.len().min(params.len());
        if params.iter().take(plain).any(|param| *param == "caller") {
            return Err(refused(span, "the parameter 'caller' needs a default"));
        }
        let in_condition = std::mem::replace(&mut self.in_condition, false);
        self.specials.push(Specials::default());
        let mut body = Vec::new();
        for (param, default) in params.iter().skip(plain).zip(&declared.defaults) {
            body.push(self.default(param, default, span)?);
        }
        body.extend(self.body(&declared.body)?);
        let specials = self.specials.pop().unwrap_or_default();
        self.in_condition = in_condition;
        let mut signature = Signature {
            name,
            params: params.iter().map(|&param| param.to_owned()).collect(),
            defaults: declared.defaults.len(),
            ..Signature::default()
        };
        let mut args = params;
        for (used, special, accepts) in [
            (specials.caller, "caller", &mut signature.caller),
            (specials.kwargs, "kwargs", &mut signature.kwargs),
            (specials.varargs, "varargs", &mut signature.varargs),
        ] {
            if used && !args.contains(&special) {
                args.push(special);
                *accepts = true;
            }
        }
        let lowered = ast::Macro {
            name: stored,
            args: args.into_iter().map(|name| variable(name, span)).collect(),
            defaults: Vec::new(),
            body,
        };
        out.push(Stmt::Macro(Spanned::new(lowered, span)));
        let signature = constant(Value::from_object(signature), span);
        let bound = apply(op::MACRO, variable(stored, span), vec![signature], span);
        out.push(set(variable(stored, span), bound, span));
        Ok(())
    }

    /// Makes `{% if name is missing %}{% set name = default %}{% endif %}`.
    fn default(
        &mut self,
        name: &'static str,
        default: &Expression,
        span: Span,
    ) -> Result<Statement, Error> {
        let (args, expr) = (Vec::new(), variable(name, span));
        let missing = ast::Test {
            name: MISSING,
            expr,
            args,
        };
        let default = self.expr(default)?;
        let lowered = ast::IfCond {
            expr: Expr::Test(Spanned::new(missing, span)),
            true_body: vec![set(variable(name, span), default, span)],
            false_body: Vec::new(),
        };
        Ok(Stmt::IfCond(Spanned::new(lowered, span)))
    }

    /// Converts a call block: the block becomes a macro, and the call gets the macro as
    /// `caller`.
    pub(super) fn call_block(
        &mut self,
        out: &mut Vec<Statement>,
        block: &Spanned<ast::CallBlock<'static>>,
    ) -> Result<(), Error> {
        let span = block.span();
        let expr = self.callee(&block.call.expr, span)?;
        let mut args = self.args(&block.call.args, span)?;
        args.push(CallArg::Kwarg("caller", variable(CALLER, span)));
        let mut body = Vec::new();
        self.declare(&mut body, CALLER, None, &block.macro_decl)?;
        let call = Expr::Call(Spanned::new(ast::Call { expr, args }, span));
        body.push(emit(call, span));
        out.push(scope(body, span));
        Ok(())
    }
}

/// Returns the names of a macro's parameters.
fn params(declared: &ast::Macro<'static>, span: Span) -> Result<Vec<&'static str>, Error> {
    let mut params: Vec<&'static str> = Vec::new();
    for arg in &declared.args {
        match arg {
            Expr::Var(name) if !params.contains(&name.id) => params.push(name.id),
            _ => {
                return Err(refused(
                    span,
                    "a macro's parameters are names, each of them once",
                ));
            }
        }
    }
    Ok(params)
}
