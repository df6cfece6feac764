"""The original's own training step, google-research/electra under TensorFlow 2, in a process of its own.

    TENSORFLOW_PYTHON benchmarks/google_electra.py '{"checkout": DIR, ...}'

`contestants.py` starts it with an interpreter that has TensorFlow (2.15, since later versions lack `tf.layers`) and
nothing of ours. It builds the checkout's graph: masking, both towers, sampling, losses, clipping, optimizer. Then it
writes the loss of the first step and, for each number of steps that it reads, the seconds per step, as one JSON value
per line.
"""

import json
import os
import sys
import tempfile
import time
import types


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow.compat.v1 as tf


tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)


def layer_norm(inputs, begin_norm_axis, begin_params_axis, scope=None):
    """`tf.contrib.layers.layer_norm`, which TensorFlow 2 lacks, over the last dimension."""
    width = inputs.shape[-1]
    with tf.variable_scope(scope, "LayerNorm"):
        shift = tf.get_variable("beta", [width], initializer=tf.zeros_initializer())
        scale = tf.get_variable("gamma", [width], initializer=tf.ones_initializer())
        mean, variance = tf.nn.moments(inputs, [-1], keepdims=True)
        return tf.nn.batch_normalization(inputs, mean, variance, shift, scale, 1e-12)


def build(settings, directory):
    """Returns the operation of a step, its loss, and the placeholder of its rows (B, L)."""
    contrib = types.ModuleType("tensorflow.contrib")
    contrib.layers = types.SimpleNamespace(layer_norm=layer_norm)
    sys.modules[contrib.__name__] = contrib
    sys.path.insert(0, settings["checkout"])
    import configure_pretraining
    import run_pretraining
    from model import optimization

    with open(os.path.join(directory, "vocab.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"{token}\n" for token in settings["special_tokens"])
    config = configure_pretraining.PretrainingConfig("benchmark", directory, **settings["config"])
    rows = tf.placeholder(tf.int32, settings["shape"])
    segments = tf.tile(tf.constant([settings["segments"]], tf.int32), [settings["shape"][0], 1])
    features = {"input_ids": rows, "input_mask": tf.ones_like(rows), "segment_ids": segments}
    loss = run_pretraining.PretrainingModel(config, features, is_training=True).total_loss
    return optimization.create_optimizer(loss, num_train_steps=1_000_000, **settings["optimizer"]), loss, rows


def main():
    settings = json.loads(sys.argv[1])
    batches = np.load(settings["rows"]).reshape(-1, *settings["shape"])
    with tempfile.TemporaryDirectory() as directory:
        step, loss, rows = build(settings, directory)
    threads = {
        "intra_op_parallelism_threads": settings["threads"],
        "inter_op_parallelism_threads": settings["threads"],
    }
    with tf.Session(config=tf.ConfigProto(**threads)) as session:
        session.run(tf.global_variables_initializer())
        print(json.dumps(float(session.run(loss, {rows: batches[0]}))), flush=True)
        for line in sys.stdin:
            began = time.perf_counter()
            for index in range(int(line)):
                session.run(step, {rows: batches[index % len(batches)]})
            print(json.dumps((time.perf_counter() - began) / int(line)), flush=True)


if __name__ == "__main__":
    main()
