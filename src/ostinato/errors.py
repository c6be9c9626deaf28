"""Everything that can go wrong for a user, in one tree.

    OstinatoError                      exit  status  code
    ├── InvalidRequestError               2     400  invalid_request
    │   ├── ContextLengthError            2     400  context_length_exceeded
    │   └── TemplateError                 1     400  template_error
    │       └── NoTemplateError           1     400  no_chat_template
    ├── ModelNotFoundError                1     404  model_not_found
    ├── ModelFileError                    1     500  bad_model_file
    │   └── UnsupportedModelError         1     500  unsupported_model
    ├── DownloadError                     1     502  download_failed
    ├── KernelError                       1     500  kernel_error
    └── NumericalError                    1     500  non_finite_logits

Each message is one line for a person: what was wrong, the value, what is allowed, what to do. The command
line prints it and ends with `exit_code`; a server answers `http_status` with `code` and, where one parameter
is to blame, its name in `param`. Standard library only; anyone may import this module.
"""

from __future__ import annotations

from typing import ClassVar


class OstinatoError(Exception):
    """The root: any error a user or a user's file can cause."""

    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    code: ClassVar[str] = "error"


class InvalidRequestError(OstinatoError):
    """A value given by the caller is not allowed. `param` names it where it has a name."""

    exit_code = 2
    http_status = 400
    code = "invalid_request"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(InvalidRequestError):
    """The prompt (and the tokens asked for) does not fit the context; the message names both lengths."""

    code = "context_length_exceeded"


class TemplateError(InvalidRequestError):
    """The model's chat template refused the messages, or is itself broken."""

    exit_code = 1
    code = "template_error"


class NoTemplateError(TemplateError):
    """A chat was asked of a model that has no chat template."""

    code = "no_chat_template"


class ModelNotFoundError(OstinatoError):
    """A name leads to no model, or a path to no file."""

    http_status = 404
    code = "model_not_found"


class ModelFileError(OstinatoError):
    """A model file is damaged or not what it claims to be."""

    code = "bad_model_file"


class UnsupportedModelError(ModelFileError):
    """A sound file with an architecture, tensor type or tokenizer that is not built."""

    code = "unsupported_model"


class DownloadError(OstinatoError):
    """A model could not be fetched or did not arrive as published."""

    http_status = 502
    code = "download_failed"


class KernelError(OstinatoError):
    """Kernels could not be compiled or loaded on this machine."""

    code = "kernel_error"


class NumericalError(OstinatoError):
    """The logits of a request hold NaN, or nothing finite to choose from."""

    code = "non_finite_logits"
