#!/usr/bin/env python3
"""Trains the classifier of irises that `model/iris` holds. Needs scikit-learn of the version in files/requirements.txt, as the image has it.

PYTHONPATH=/opt/mlserver python3 make_model.py FILE
"""

import sys

import joblib
from sklearn.datasets import load_iris
from sklearn.tree import DecisionTreeClassifier

flowers, kinds = load_iris(return_X_y=True)
joblib.dump(DecisionTreeClassifier(max_depth=3, random_state=0).fit(flowers, kinds), sys.argv[1])
