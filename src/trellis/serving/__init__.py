"""What leaves the library: models that are served without the code that made them."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.serving.export import (
        export_model as export_model,
        Signature as Signature,
        ServingFunction as ServingFunction,
        PLATFORMS as PLATFORMS,
    )
    from trellis.serving.manifest import (
        Format as Format,
        FORMATS as FORMATS,
        MADE_FROM as MADE_FROM,
        check_format as check_format,
        find_served_model as find_served_model,
        read_manifest as read_manifest,
    )
    from trellis.serving.load import (
        load_model as load_model,
        find_parameters as find_parameters,
        read_parameters as read_parameters,
        LoadedModel as LoadedModel,
        LoadedSignature as LoadedSignature,
        model_in_memory as model_in_memory,
    )
    from trellis.serving.blessing import (
        Blessing as Blessing,
        BlessingRules as BlessingRules,
        bless as bless,
        check_rules as check_rules,
        read_rules as read_rules,
    )
    from trellis.serving.lifetime import written_line as written_line
    from trellis.serving.refresh import (
        ModelToRefresh as ModelToRefresh,
        Refreshed as Refreshed,
        read_to_refresh as read_to_refresh,
        refresh_model as refresh_model,
    )
    from trellis.serving.array_predictor import (
        ARRAY_BATCH_SIZE as ARRAY_BATCH_SIZE,
        ArrayPredictor as ArrayPredictor,
        ArrayAnswers as ArrayAnswers,
        AskedArrays as AskedArrays,
    )
    from trellis.serving.array_answers import (
        AnswersFile as AnswersFile,
        answer_lines as answer_lines,
        answer_rows as answer_rows,
        open_answers_file as open_answers_file,
    )
    from trellis.serving.server import serve_model as serve_model, ServerOptions as ServerOptions
    from trellis.serving.versions import (
        OpenText as OpenText,
        TextAnswers as TextAnswers,
        AskRows as AskRows,
    )
    from trellis.serving.address import bind as bind, check_access as check_access
    from trellis.serving.served_directory import check_served as check_served
else:
    __getattr__, __dir__, __all__ = door(__name__)
