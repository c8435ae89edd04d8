"""Tests. The folders mirror the packages."""
