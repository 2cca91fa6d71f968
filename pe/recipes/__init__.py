"""Recipes: everything that defines a training run, and the named ones. Imports no torch."""

from pe.recipes.named import RECIPES, recipe
from pe.recipes.recipe import Recipe
