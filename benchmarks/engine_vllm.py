"""vLLM for `benchmarks/engine.py`: run by the Python of an environment that has it, one JSON request a line.

    PYTHON benchmarks/engine_vllm.py MODEL MAX_CONTEXT

Says "ready", then answers {"prompts": [[ids]], "new": n} with the number of tokens generated. What it prints itself
goes to stderr.
"""

import json
import os
import sys

answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def main() -> None:
    from vllm import LLM, SamplingParams

    model, context = sys.argv[1:]
    engine = LLM(
        model,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=int(context),
        max_num_seqs=64,
        enable_prefix_caching=False,  # the same prompts come again
    )
    print("ready", file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        params = SamplingParams(max_tokens=asked["new"], temperature=0.0, ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
        done = engine.generate(prompts, params, use_tqdm=False)
        print(sum(len(each.outputs[0].token_ids) for each in done), file=answers)


if __name__ == "__main__":
    main()
